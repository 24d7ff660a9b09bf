-- Adds ended claims to the totals and marks them as counted, in one statement: nothing is counted twice,
-- even if a watchdog is killed. A histogram is one total for each upper bound (not cumulative), and its
-- "sum".
-- $1 claims per statement, $2 upper bounds of durations in ms, ascending.
-- Always one row. `counted` less than $1: none are left.
WITH ended AS MATERIALIZED (
    SELECT *
    FROM deletion_claims
    WHERE NOT counted AND (finished_at IS NOT NULL OR reset_at IS NOT NULL)
    ORDER BY id
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE deletion_claims SET counted = true
    WHERE id = ANY (ARRAY(SELECT id FROM ended))
), durations AS (
    SELECT name, ms
    FROM ended,
         LATERAL (VALUES ('lock_wait', lock_wait_ms), ('lock_hold', lock_hold_ms),
                         ('phase_claim', claim_ms), ('phase_decrement', decrement_ms),
                         ('phase_delete', delete_ms), ('phase_evict', evict_ms),
                         ('phase_finish', finish_ms)) AS phase (name, ms)
    WHERE ms IS NOT NULL AND finished_at IS NOT NULL
), more (name, label, value) AS (
    SELECT 'pastes_deleted', '', sum(rows_deleted)::float8 FROM ended WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT 'objects_deleted', '', sum(objects_deleted) FROM ended WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT 'freed_bytes', '', sum(bytes_freed) FROM ended WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT 'batches', '', count(*) FROM ended WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT 'drift', '', sum(drift) FROM ended
    UNION ALL
    SELECT 'paste_failures', '', sum(rows_failed) FROM ended
    UNION ALL
    SELECT 'dead_letters', '', sum(dead_letters) FROM ended
    UNION ALL
    SELECT 'claims_reset',
           CASE WHEN reset_reason = 'worker lease expired'
                THEN 'lease_expired' ELSE 'released' END, count(*)
    FROM ended WHERE reset_at IS NOT NULL GROUP BY 2
    UNION ALL
    SELECT 'pastes_reset', '', sum(rows_claimed) FROM ended WHERE reset_at IS NOT NULL
    UNION ALL
    SELECT name, coalesce((($2::float8[])[width_bucket(ms - 1, $2::float8[]) + 1] / 1000)::text, '+Inf'),
           count(*)
    FROM durations GROUP BY 1, 2
    UNION ALL
    SELECT name, 'sum', sum(ms) / 1000.0 FROM durations GROUP BY 1
    UNION ALL
    SELECT 'age', key, sum(value::float8) FROM ended, jsonb_each_text(ages) GROUP BY 2
), added AS (
    INSERT INTO cleanup_totals AS total (name, label, value)
    SELECT name, label, value FROM more WHERE value <> 0
    -- In order, so that two watchdogs never deadlock.
    ORDER BY name, label
    ON CONFLICT (name, label) DO UPDATE SET value = total.value + excluded.value
)
SELECT count(*) AS counted FROM ended
