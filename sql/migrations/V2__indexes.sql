-- Creates the indexes and sets the storage options.
--
-- An `index <name>` step is executed outside a transaction and without lock_timeout (a concurrent
-- build waits for older transactions, and the timeout would end it). The runner first drops an INVALID
-- leftover of that name, and skips the step if the index, or an equivalent one of the table's owner,
-- already exists: see sql/queries/migrate/index_state.sql.
--
-- All indexes on pastes are partial. A plain index on deletion_status would be updated by every
-- claim, and no query needs it.

-- step: index content_s3_key_key: one row per key, which the audit's sentinels rely on
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS content_s3_key_key ON content (s3_key);

-- step: index pastes_due_idx: due pastes in the order in which they are claimed
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_due_idx
    ON pastes (coalesce(retry_at, expires_at)) WHERE deletion_status = 'NOT_EXPIRED';

-- step: index pastes_claim_idx: the rows of one claim
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_claim_idx
    ON pastes (claim_id) WHERE deletion_status = 'DELETION_IN_PROGRESS';

-- step: index pastes_unclaimed_idx: rows in progress without a claim, by age
-- Another program marked them. Only these rows: an index on all rows in progress would have to be
-- updated for every claimed row (measured: 1 of 15 ms a claim).
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_unclaimed_idx
    ON pastes (deletion_initiated_at)
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL;

-- step: index pastes_content_hash_idx: the pastes that reference a content row
-- Leaves out claimed rows: a claim writes a new version of each row, which would have to be inserted
-- here at a random place (measured: 4 of 15 ms a claim, and a quarter of its WAL). The trigger
-- pastes_verify_content protects these rows instead, see V3. Includes rows in progress without a claim,
-- which another program marked: with any other index, every decrement would read all of them.
-- Not "= 'NOT_EXPIRED'": a query with that condition may walk pastes_due_idx instead. Planned on a table
-- of 600 rows and cached until it had 500,000, that took 5 s for each decrement instead of 2 ms.
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_content_hash_idx
    ON pastes (content_hash)
    WHERE content_hash IS NOT NULL AND deletion_status <> 'DELETED'
      AND (claim_id IS NULL OR deletion_status <> 'DELETION_IN_PROGRESS');

-- step: index pastes_retry_idx: pastes that back off, and dead letters
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_retry_idx
    ON pastes (retry_at) WHERE retry_at IS NOT NULL;

-- step: index pastes_tombstones_idx: tombstones by age, for the purge
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_tombstones_idx
    ON pastes (deletion_initiated_at) WHERE deletion_status = 'DELETED';

-- step: index deletion_claims_open_idx: open claims by last heartbeat, for the watchdog
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_open_idx
    ON deletion_claims (heartbeat_at) WHERE finished_at IS NULL AND reset_at IS NULL;

-- step: index deletion_claims_ended_idx: ended claims by age, for pruning the history
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_ended_idx
    ON deletion_claims (coalesce(finished_at, reset_at))
    WHERE finished_at IS NOT NULL OR reset_at IS NOT NULL;

-- step: cleanup_canonical_key: the canonical form of all spellings of a key
-- Some stores (SeaweedFS, Garage, stores on a file system) treat `a//b`, `/a/b`, `a/./b` and `a\b` as
-- the object `a/b`, and normalise Unicode. Two keys with the same canonical form may be one object.
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
-- Empty if all keys are plain, so that a search for other spellings costs nothing.
CREATE INDEX CONCURRENTLY IF NOT EXISTS content_odd_key_idx ON content (cleanup_canonical_key(s3_key))
    WHERE s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)' OR octet_length(s3_key) <> length(s3_key);

-- step: index pastes_pending_s3_key_idx: rows with a pending object delete
-- Few rows have such a key; claims of other rows do not touch this index. The audit reads it before it
-- reports an object as an orphan.
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_pending_s3_key_idx
    ON pastes (pending_s3_key) WHERE pending_s3_key IS NOT NULL;

-- step: index deletion_claims_uncounted_idx: ended claims that are not in the totals yet
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_uncounted_idx
    ON deletion_claims (id)
    WHERE NOT counted AND (finished_at IS NOT NULL OR reset_at IS NOT NULL);

-- step: repeat: pastes: set the age of rows that another program left in progress
-- Without an age the watchdog could never reset them. They are found through pastes_unclaimed_idx.
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

-- step: helper function that sets storage options that the owner has not set
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
-- A night leaves two dead tuples for each deleted paste (from the claim and from the DELETE), all of
-- them at the low end of pastes_due_idx, where the next claim begins. The default threshold is 20 % of
-- the table: with 100M rows, weeks. 1 % is about one night; the higher cost limit lets a vacuum get
-- through the indexes before the next one starts. Inserts need vacuums, too, so that the visibility
-- map is current and freezing is done in small pieces.
SELECT pg_temp.set_options('pastes', ARRAY[
    ['autovacuum_vacuum_scale_factor', '0.01'],
    ['autovacuum_vacuum_threshold', '5000'],
    ['autovacuum_vacuum_insert_scale_factor', '0.05'],
    ['autovacuum_analyze_scale_factor', '0.02'],
    ['autovacuum_vacuum_cost_limit', '1000']]);

-- step: content: autovacuum and room for HOT updates
-- ref_count is in no index: with free space on the page, its updates are HOT and touch no index.
SELECT pg_temp.set_options('content', ARRAY[
    ['fillfactor', '90'],
    ['autovacuum_vacuum_scale_factor', '0.01'],
    ['autovacuum_vacuum_threshold', '5000'],
    ['autovacuum_vacuum_insert_scale_factor', '0.05'],
    ['autovacuum_analyze_scale_factor', '0.02']]);

-- step: deletion_claims: autovacuum
-- A small table whose rows are each updated three to thirty times: thresholds by count, not by share.
-- No fillfactor: each of these updates changes heartbeat_at or the predicate of an index, so it can
-- never be HOT.
SELECT pg_temp.set_options('deletion_claims', ARRAY[
    ['autovacuum_vacuum_scale_factor', '0'],
    ['autovacuum_vacuum_threshold', '2000'],
    ['autovacuum_analyze_scale_factor', '0'],
    ['autovacuum_analyze_threshold', '2000']]);

-- step: pastes: fresh statistics
-- Without statistics (a new load, a restore) the safety brake and `status` can only guess.
ANALYZE pastes;

-- step: content: fresh statistics
ANALYZE content;
