-- Creates the tables in an empty database, or adopts an existing `pastes` and `content` that are
-- filled and in use.
--
-- How this file runs: each `-- step:` is executed separately (no transaction around all of them),
-- under a short lock_timeout with retries, and may run again after a crash: it checks the catalog
-- first and takes no strong lock when there is nothing to do. Text above the first step is not
-- executed.

-- step: list of applied migrations
CREATE TABLE IF NOT EXISTS cleanup_migrations (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- step: helper functions of this session
-- Each does nothing when the catalog is already as it should be.
CREATE OR REPLACE FUNCTION pg_temp.add_columns(target regclass, wanted text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    missing text;
BEGIN
    SELECT string_agg(format('ADD COLUMN %I %s', wanted[i][1], wanted[i][2]), ', ' ORDER BY i)
      INTO missing
      FROM generate_subscripts(wanted, 1) AS i
     WHERE NOT EXISTS (SELECT FROM pg_attribute
                        WHERE attrelid = target AND attname = wanted[i][1] AND NOT attisdropped);
    -- One ALTER for all columns takes one lock. Constant defaults (now() is one here) are stored in
    -- the catalog, so the table is neither rewritten nor read.
    IF missing IS NOT NULL THEN
        EXECUTE format('ALTER TABLE %s %s', target, missing);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pg_temp.set_default(target regclass, wanted_column text, value text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
      WHERE a.attrelid = target AND a.attname = wanted_column
        AND starts_with(pg_get_expr(d.adbin, d.adrelid), value);
    IF NOT FOUND THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', target, wanted_column, value);
    END IF;
END $$;

-- `same_as` recognises a validated CHECK of the table's owner with the same meaning and another name.
CREATE OR REPLACE FUNCTION pg_temp.add_check(target regclass, name text, rule text, same_as text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pg_constraint c
      WHERE c.conrelid = target AND c.contype = 'c'
        AND (c.conname = name OR (c.convalidated AND pg_get_constraintdef(c.oid) ~ same_as));
    IF NOT FOUND THEN
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%s) NOT VALID', target, name, rule);
    END IF;
END $$;

-- Adds the CHECK that lets SET NOT NULL skip reading the table under its strong lock.
CREATE OR REPLACE FUNCTION pg_temp.expect_value(target regclass, wanted_column text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pg_attribute
      WHERE attrelid = target AND attname = wanted_column AND NOT attnotnull;
    IF FOUND THEN
        PERFORM pg_temp.add_check(target, 'cleanup_' || wanted_column || '_not_null',
                                  format('%I IS NOT NULL', wanted_column),
                                  format('^CHECK \(\(%I IS NOT NULL\)\)$', wanted_column));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pg_temp.validate_checks(target regclass, names text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    unproven text;
BEGIN
    SELECT string_agg(format('VALIDATE CONSTRAINT %I', conname), ', ') INTO unproven
      FROM pg_constraint
     WHERE conrelid = target AND NOT convalidated
       AND (conname = ANY (names) OR conname ~ '^cleanup_.*_not_null$');
    -- One ALTER reads the table once for all constraints; writers are not blocked.
    IF unproven IS NOT NULL THEN
        EXECUTE format('ALTER TABLE %s %s', target, unproven);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pg_temp.require_value(target regclass, wanted_column text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    proof text := 'cleanup_' || wanted_column || '_not_null';
BEGIN
    PERFORM FROM pg_attribute
      WHERE attrelid = target AND attname = wanted_column AND NOT attnotnull;
    IF FOUND THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', target, wanted_column);
    END IF;
    -- A separate statement: within one ALTER the DROP is done first, and the proof would be missing.
    PERFORM FROM pg_constraint WHERE conrelid = target AND conname = proof;
    IF FOUND THEN
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', target, proof);
    END IF;
END $$;

-- step: content and pastes: one row per distinct object and one per short code
-- In one transaction: if only one of the two exists, the next run refuses to continue.
CREATE TABLE IF NOT EXISTS content (
    content_hash bytea PRIMARY KEY,
    -- The full key in the bucket. Unique for each upload, never reused.
    s3_key       text NOT NULL UNIQUE,
    size_bytes   bigint,
    ref_count    int NOT NULL DEFAULT 0
                 CONSTRAINT content_ref_count_not_negative CHECK (ref_count >= 0),
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS pastes (
    short_code            text PRIMARY KEY,
    -- NULL: this row has no reference to content any more.
    content_hash          bytea,
    created_at            timestamptz NOT NULL DEFAULT now(),
    -- NULL: never expires.
    expires_at            timestamptz,
    deletion_status       varchar(20) NOT NULL DEFAULT 'NOT_EXPIRED'
                          CONSTRAINT pastes_deletion_status_known CHECK
                          (deletion_status IN ('NOT_EXPIRED', 'DELETION_IN_PROGRESS', 'DELETED')),
    deletion_initiated_at timestamptz,
    claim_id              bigint,
    -- Failed attempts so far; a claim alone does not count.
    attempts              smallint NOT NULL DEFAULT 0,
    -- In the future: the row backs off. 'infinity': a dead letter, which waits for an operator.
    retry_at              timestamptz,
    -- Pending object delete: the object that the next claim of this row must delete.
    pending_s3_key        text,
    last_error            text
);

-- step: deletion_claims: the lease, the fence and the mutex of each batch
CREATE TABLE IF NOT EXISTS deletion_claims (
    id              bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    worker          uuid NOT NULL,
    claimed_at      timestamptz NOT NULL DEFAULT now(),
    heartbeat_at    timestamptz NOT NULL DEFAULT now(),
    rows_claimed    int NOT NULL,
    -- When the references of its rows were subtracted. From then on, until the claim is finished,
    -- the object pending_s3_keys[i] is to be deleted on behalf of the paste pending_owners[i].
    decremented_at  timestamptz,
    pending_owners  text[],
    pending_s3_keys text[],
    finished_at     timestamptz,
    reset_at        timestamptz,
    reset_reason    text,
    -- The columns below are for status, metrics and totals. No step of a batch reads them.
    rows_deleted    int,
    objects_deleted int,
    bytes_freed     bigint,
    claim_ms        int,
    decrement_ms    int,
    delete_ms       int,
    evict_ms        int,
    finish_ms       int,
    lock_wait_ms    int,
    lock_hold_ms    int,
    -- Content rows whose ref_count was wrong and was repaired by the decrement.
    drift           int,
    -- Pastes that this batch could not delete, and how many of them became dead letters.
    rows_failed     int,
    dead_letters    int,
    -- Histogram of the time from expiry to deletion: pastes by upper bound in seconds, and "sum".
    ages            jsonb,
    -- Whether cleanup_totals includes this claim.
    counted         boolean NOT NULL DEFAULT false
);
-- Keys and short codes are random: compressing them adds 0.6 ms to a decrement and saves no space.
ALTER TABLE deletion_claims ALTER pending_owners SET STORAGE EXTERNAL,
                            ALTER pending_s3_keys SET STORAGE EXTERNAL;

-- step: cleanup_unclaimable: pastes that Postgres does not let a worker claim
-- A constraint or trigger of the table's owner refuses the claim's UPDATE, so nothing can be recorded
-- in the row itself. Claims leave these pastes out until retry_at.
CREATE TABLE IF NOT EXISTS cleanup_unclaimable (
    short_code text PRIMARY KEY,
    error      text NOT NULL,
    found_at   timestamptz NOT NULL DEFAULT now(),
    retry_at   timestamptz NOT NULL
);
-- Claims run with enable_seqscan off. Without this index, the sequential scan of an empty table would
-- cost 1e10, and every claim would be JIT-compiled.
CREATE INDEX IF NOT EXISTS cleanup_unclaimable_retry_idx
    ON cleanup_unclaimable (retry_at) INCLUDE (short_code);

-- step: cleanup_fleet: the bucket of this database, and the pause
CREATE TABLE IF NOT EXISTS cleanup_fleet (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    bucket       text,
    prefix       text,
    paused_at    timestamptz,
    pause_reason text,
    -- When a watchdog last completed a tick.
    watchdog_at  timestamptz
);
INSERT INTO cleanup_fleet DEFAULT VALUES ON CONFLICT DO NOTHING;

-- The steps below add what an existing content and pastes may lack.

-- step: content: missing columns
SELECT pg_temp.add_columns('content', ARRAY[
    ['size_bytes', 'bigint'],
    ['created_at', 'timestamptz NOT NULL DEFAULT now()']]);
SELECT pg_temp.set_default('content', 'ref_count', '0');

-- step: pastes: missing columns
SELECT pg_temp.add_columns('pastes', ARRAY[
    ['created_at', 'timestamptz NOT NULL DEFAULT now()'],
    ['deletion_status', 'varchar(20) NOT NULL DEFAULT ''NOT_EXPIRED'''],
    ['deletion_initiated_at', 'timestamptz'],
    ['claim_id', 'bigint'],
    ['attempts', 'smallint NOT NULL DEFAULT 0'],
    ['retry_at', 'timestamptz'],
    ['pending_s3_key', 'text'],
    ['last_error', 'text']]);
SELECT pg_temp.set_default('pastes', 'deletion_status', '''NOT_EXPIRED''');
SELECT pg_temp.set_default('pastes', 'attempts', '0');

-- step: content: checks, not yet validated
SELECT pg_temp.add_check('content', 'content_ref_count_not_negative', 'ref_count >= 0',
                         '^CHECK \(\(ref_count >= 0\)\)$');
SELECT pg_temp.expect_value('content', 'ref_count');
SELECT pg_temp.expect_value('content', 's3_key');

-- step: content: validate the checks
SELECT pg_temp.validate_checks('content', ARRAY['content_ref_count_not_negative']);

-- step: content: NOT NULL
SELECT pg_temp.require_value('content', 'ref_count');
SELECT pg_temp.require_value('content', 's3_key');

-- step: helper function that fills in missing statuses, a few pages of the table at a time
-- Walks the table by physical position: one pass, however many rows are NULL. Searching for "the next
-- 5000" would read all earlier rows again each time. 64 pages have about 5000 rows. Pages that the
-- updates themselves append are visited, too, and need no change.
CREATE OR REPLACE FUNCTION pg_temp.fill_status(first_page bigint)
RETURNS TABLE (filled bigint, next_page bigint) LANGUAGE plpgsql AS $$
DECLARE
    pages CONSTANT int := 64;
    from_row tid := format('(%s,0)', first_page);
    to_row tid := format('(%s,0)', first_page + pages);
BEGIN
    PERFORM FROM pg_attribute
      WHERE attrelid = 'pastes'::regclass AND attname = 'deletion_status' AND attnotnull;
    IF FOUND THEN
        RETURN QUERY SELECT 0::bigint, NULL::bigint;
        RETURN;
    END IF;
    UPDATE pastes SET deletion_status = 'NOT_EXPIRED'
     WHERE ctid >= from_row AND ctid < to_row AND deletion_status IS NULL;
    GET DIAGNOSTICS filled = ROW_COUNT;
    IF (first_page + pages) * current_setting('block_size')::bigint < pg_relation_size('pastes') THEN
        next_page := first_page + pages;
    END IF;
    RETURN NEXT;
END $$;

-- step: repeat: pastes: fill in missing statuses
SELECT filled, next_page FROM pg_temp.fill_status($1);

-- step: pastes: checks, not yet validated
-- After the statuses are filled in: a NOT VALID check already refuses updates of rows that violate it.
SELECT pg_temp.add_check('pastes', 'pastes_deletion_status_known',
    'deletion_status IN (''NOT_EXPIRED'', ''DELETION_IN_PROGRESS'', ''DELETED'')',
    '^CHECK .*deletion_status(?=.*''NOT_EXPIRED'')(?=.*''DELETION_IN_PROGRESS'')(?=.*''DELETED'')'
    '(?!(.*''){7})');
SELECT pg_temp.expect_value('pastes', 'deletion_status');
SELECT pg_temp.expect_value('pastes', 'attempts');

-- step: repeat: pastes: fill in statuses of rows inserted meanwhile
SELECT filled, next_page FROM pg_temp.fill_status($1);

-- step: pastes: validate the checks
SELECT pg_temp.validate_checks('pastes', ARRAY['pastes_deletion_status_known']);

-- step: pastes: NOT NULL
SELECT pg_temp.require_value('pastes', 'deletion_status');
SELECT pg_temp.require_value('pastes', 'attempts');

-- step: always: content: created_at has a default
-- Without a default, content that a writer stores without a time would count as old.
DO $$
BEGIN
    PERFORM FROM pg_attribute
      WHERE attrelid = 'content'::regclass AND attname = 'created_at' AND NOT atthasdef;
    IF FOUND THEN
        ALTER TABLE content ALTER COLUMN created_at SET DEFAULT now();
    END IF;
END $$;
