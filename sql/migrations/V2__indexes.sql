-- The indexes and the storage settings.
--
-- An `index <name>` step is executed outside a transaction and without lock_timeout (a concurrent
-- build waits for older transactions and would be ended by it). Before it the runner drops an
-- INVALID leftover of that name, and it skips the step when the index, or one of the owner's that
-- does the same, is already there: see sql/queries/migrate/index_state.sql.
--
-- All indexes on pastes are partial: the status changes for every row that goes, so an index on
-- the bare status would be churned by every statement and useful to none.

-- step: index content_s3_key_key: one row per key, what the audit's sentinel relies on
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS content_s3_key_key ON content (s3_key);

-- step: index pastes_due_idx: what the claim picks from, in the order things come due
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_due_idx
    ON pastes (coalesce(retry_at, expires_at)) WHERE deletion_status = 'NOT_EXPIRED';

-- step: index pastes_claim_idx: the rows of one claim
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_claim_idx
    ON pastes (claim_id) WHERE deletion_status = 'DELETION_IN_PROGRESS';

-- step: index pastes_unclaimed_idx: rows in progress that something else marked, by age
-- Only those: an index of all rows in progress by age would be one more to maintain for every row
-- that is claimed (measured: 1 of 15 ms a claim).
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_unclaimed_idx
    ON pastes (deletion_initiated_at)
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL;

-- step: index pastes_content_hash_idx: which other pastes reference content that is to be deleted
-- Without the rows that are claimed: a claim moves its rows, and would put each of them into this index
-- again, at a random place (measured: 4 of 15 ms a claim, and a quarter of its WAL). What keeps
-- them safe instead is the trigger pastes_verify_content, see V3. With the rows in progress that
-- something else marked, which have no claim: searched elsewhere, every decrement would read all of
-- them.
-- Not "= 'NOT_EXPIRED'": a query that says so may walk pastes_due_idx instead. Planned on a table of
-- 600 rows and kept until it had 500,000, that took 5 s for each decrement instead of 2 ms.
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_content_hash_idx
    ON pastes (content_hash)
    WHERE content_hash IS NOT NULL AND deletion_status <> 'DELETED'
      AND (claim_id IS NULL OR deletion_status <> 'DELETION_IN_PROGRESS');

-- step: index pastes_retry_idx: backing off and dead letters; empty on a good night
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_retry_idx
    ON pastes (retry_at) WHERE retry_at IS NOT NULL;

-- step: index pastes_tombstones_idx: tombstones by age, for the purge
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_tombstones_idx
    ON pastes (deletion_initiated_at) WHERE deletion_status = 'DELETED';

-- step: index deletion_claims_open_idx: unfinished claims by last heartbeat, for the watchdog
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_open_idx
    ON deletion_claims (heartbeat_at) WHERE finished_at IS NULL AND reset_at IS NULL;

-- step: index deletion_claims_ended_idx: ended claims by age, for pruning the history
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_ended_idx
    ON deletion_claims (coalesce(finished_at, reset_at))
    WHERE finished_at IS NOT NULL OR reset_at IS NOT NULL;

-- step: cleanup_canonical_key: the one form of all spellings of a key
-- Some stores (SeaweedFS, Garage, those that keep files) take `a//b`, `/a/b`, `a/./b` and `a\b` for
-- the object `a/b`, and compose Unicode. Two keys with the same canonical form may be one object.
CREATE OR REPLACE FUNCTION cleanup_canonical_key(s3_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    part  text;
    parts text[] := '{}';
BEGIN
    IF getdatabaseencoding() = 'UTF8' THEN
        s3_key := normalize(s3_key, NFC);
    END IF;
    FOREACH part IN ARRAY regexp_split_to_array(s3_key, '[/\\]+') LOOP
        IF part = '..' THEN
            parts := parts[:cardinality(parts) - 1];
        ELSIF part NOT IN ('', '.') THEN
            parts := parts || part;
        END IF;
    END LOOP;
    RETURN array_to_string(parts, '/');
END $$;
COMMENT ON FUNCTION cleanup_canonical_key(text) IS
    'Two keys with the same canonical form may be one object in a store that normalises keys.';

-- step: index content_odd_key_idx: keys that may not be in canonical form
-- Empty where keys are plain, so that looking for other spellings costs nothing.
CREATE INDEX CONCURRENTLY IF NOT EXISTS content_odd_key_idx ON content (cleanup_canonical_key(s3_key))
    WHERE s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)' OR octet_length(s3_key) <> length(s3_key);

-- step: index pastes_pending_s3_key_idx: the row that must delete an object
-- Few rows have such a key; a claim of the others never touches this index. The audit asks it before it
-- calls an object an orphan.
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_pending_s3_key_idx
    ON pastes (pending_s3_key) WHERE pending_s3_key IS NOT NULL;

-- step: index deletion_claims_uncounted_idx: ended claims that are not in the totals yet
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_uncounted_idx
    ON deletion_claims (id)
    WHERE NOT counted AND (finished_at IS NOT NULL OR reset_at IS NOT NULL);

-- step: repeat: pastes: give rows that another system left in progress an age
-- Without one the watchdog could never call them stuck. Finds them through pastes_unclaimed_idx.
WITH ageless AS (
    SELECT short_code FROM pastes
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND deletion_initiated_at IS NULL
       AND claim_id IS NULL AND $1::bigint = 0
     LIMIT 5000
), aged AS (
    UPDATE pastes p SET deletion_initiated_at = now()
      FROM ageless a
     WHERE p.short_code = a.short_code
       AND p.deletion_status = 'DELETION_IN_PROGRESS' AND p.deletion_initiated_at IS NULL
    RETURNING 1
)
SELECT count(*) AS filled, CASE WHEN count(*) > 0 THEN 0::bigint END AS next_page FROM aged;

-- step: helper that sets storage options the owner has not set
CREATE OR REPLACE FUNCTION pg_temp.set_options(target regclass, wanted text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    unset text;
BEGIN
    SELECT string_agg(format('%I = %s', wanted[i][1], wanted[i][2]), ', ') INTO unset
      FROM generate_subscripts(wanted, 1) AS i
     WHERE NOT EXISTS (SELECT FROM pg_class c, pg_options_to_table(c.reloptions) o
                        WHERE c.oid = target AND o.option_name = wanted[i][1]);
    IF unset IS NOT NULL THEN
        EXECUTE format('ALTER TABLE %s SET (%s)', target, unset);
    END IF;
END $$;

-- step: pastes: autovacuum
-- A night leaves two dead tuples for each paste that went (the claim's and the deletion's), all of
-- them at the low end of pastes_due_idx, where the next claim starts to look. The default waits
-- for 20 % of the table: on 100M rows that is weeks of nights. 1 % is about one night; the higher
-- cost limit lets the vacuum be done with the indexes before the next one. Inserts need vacuums
-- too, so that the visibility map is fresh and freezing comes in small pieces.
SELECT pg_temp.set_options('pastes', ARRAY[
    ['autovacuum_vacuum_scale_factor', '0.01'],
    ['autovacuum_vacuum_threshold', '5000'],
    ['autovacuum_vacuum_insert_scale_factor', '0.05'],
    ['autovacuum_analyze_scale_factor', '0.02'],
    ['autovacuum_vacuum_cost_limit', '1000']]);

-- step: content: autovacuum and room for HOT updates
-- ref_count is in no index: with room left on the page a count changes without touching one.
SELECT pg_temp.set_options('content', ARRAY[
    ['fillfactor', '90'],
    ['autovacuum_vacuum_scale_factor', '0.01'],
    ['autovacuum_vacuum_threshold', '5000'],
    ['autovacuum_vacuum_insert_scale_factor', '0.05'],
    ['autovacuum_analyze_scale_factor', '0.02']]);

-- step: deletion_claims: autovacuum
-- A small table of which every row is updated some three to thirty times: by count, not by share.
-- No fillfactor: each of these updates changes heartbeat_at or an index's predicate, and so can
-- never be HOT.
SELECT pg_temp.set_options('deletion_claims', ARRAY[
    ['autovacuum_vacuum_scale_factor', '0'],
    ['autovacuum_vacuum_threshold', '2000'],
    ['autovacuum_analyze_scale_factor', '0'],
    ['autovacuum_analyze_threshold', '2000']]);

-- step: pastes: fresh statistics
-- Without any (a fresh load, a restore) the brake and `status` guess.
ANALYZE pastes;

-- step: content: fresh statistics
ANALYZE content;
