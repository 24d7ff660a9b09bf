-- Triggers and rules of the table's owner that run inside the fleet's statements, and can make them fail
-- or swallow them.
-- Parameters: none. Zero rows: none. Each row: `what`, its name for a message.
WITH touched (table_name, columns) AS (
    -- The columns that the fleet updates: `UPDATE OF` other columns never fires for it.
    VALUES ('pastes', '{deletion_status,deletion_initiated_at,claim_id,attempts,retry_at,pending_s3_key,last_error,content_hash}'::name[]),
           ('content', '{ref_count}'::name[])
), triggers AS (
    SELECT f.table_name, t.tgname AS name,
           CASE WHEN t.tgtype & 2 = 2 THEN 'BEFORE' ELSE 'AFTER' END AS moment,
           t.tgtype & 8 = 8 AS on_delete,
           t.tgtype & 16 = 16
           AND (cardinality(t.tgattr::int2[]) = 0
                OR EXISTS (SELECT FROM pg_attribute a
                            WHERE a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr::int2[])
                              AND a.attname = ANY (f.columns))) AS on_update
      FROM touched f JOIN pg_trigger t ON t.tgrelid = to_regclass(f.table_name)
     WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
       AND t.tgname NOT IN ('pastes_guard', 'pastes_verify_content')
)
SELECT format('trigger %I %s %s ON %s', name, moment,
              concat_ws(' OR ', CASE WHEN on_delete THEN 'DELETE' END, CASE WHEN on_update THEN 'UPDATE' END),
              table_name) AS what
  FROM triggers WHERE on_delete OR on_update
UNION ALL
SELECT format('rule %I ON %s TO %s DO %s', r.rulename, CASE r.ev_type WHEN '2' THEN 'UPDATE' ELSE 'DELETE' END,
              f.table_name, CASE WHEN r.is_instead THEN 'INSTEAD' ELSE 'ALSO' END)
  FROM touched f JOIN pg_rewrite r ON r.ev_class = to_regclass(f.table_name)
 WHERE r.ev_type IN ('2', '4') AND r.ev_enabled IN ('O', 'A')
 ORDER BY 1;
