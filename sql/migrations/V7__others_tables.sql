-- What tables and stores that other people own make necessary.

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
-- Empty where keys are plain, so that a look for other spellings costs nothing.
CREATE INDEX CONCURRENTLY IF NOT EXISTS content_odd_key_idx ON content (cleanup_canonical_key(s3_key))
    WHERE s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)' OR octet_length(s3_key) <> length(s3_key);

-- step: cleanup_unclaimable: pastes that Postgres does not let a worker claim
-- An owner's constraint or trigger refuses the claim's UPDATE, so nothing can be noted in the row
-- itself. They are left out of claims until retry_at.
CREATE TABLE IF NOT EXISTS cleanup_unclaimable (
    short_code text PRIMARY KEY,
    error      text NOT NULL,
    found_at   timestamptz NOT NULL DEFAULT now(),
    retry_at   timestamptz NOT NULL
);
-- Claims run without sequential scans: one of an empty table, at a cost of 1e10, would have every
-- claim compiled just in time.
CREATE INDEX IF NOT EXISTS cleanup_unclaimable_retry_idx
    ON cleanup_unclaimable (retry_at) INCLUDE (short_code);

-- step: cleanup_fleet: when a watchdog last made its round
ALTER TABLE cleanup_fleet ADD COLUMN IF NOT EXISTS watchdog_at timestamptz;

-- step: cleanup_runs: claims whose rows their own worker has locked
-- A step that waits for a lock of somebody else's holds its claim's row all the while, so that the
-- heartbeat cannot reach it there.
ALTER TABLE cleanup_runs ADD COLUMN IF NOT EXISTS busy_claims bigint[];

-- step: cleanup_last_heartbeat: when a claim's worker was last known to be alive
-- A login without rights on the history goes by the claim alone.
CREATE OR REPLACE FUNCTION cleanup_last_heartbeat(claim deletion_claims) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT has_table_privilege('cleanup_runs', 'SELECT') THEN
        RETURN claim.heartbeat_at;
    END IF;
    RETURN greatest(claim.heartbeat_at,
                    (SELECT run.seen_at FROM cleanup_runs run
                     WHERE run.worker = claim.worker AND claim.id = ANY (run.busy_claims)
                       -- From when the clock was ahead: it says nothing.
                       AND run.seen_at <= now() + interval '1 minute'));
END $$;

-- step: pastes_guard: nor the short code, by which a claim knows its rows
CREATE OR REPLACE FUNCTION pastes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    going CONSTANT boolean := OLD.deletion_status = 'DELETION_IN_PROGRESS';
    refused text;
BEGIN
    IF NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
        refused := 'expires_at';
    ELSIF NEW.content_hash IS DISTINCT FROM OLD.content_hash
          AND NOT (going AND NEW.content_hash IS NULL
                   AND NEW.deletion_status <> 'DELETION_IN_PROGRESS') THEN
        refused := 'content_hash';
    ELSIF going AND NEW.short_code IS DISTINCT FROM OLD.short_code THEN
        refused := 'short_code';
    ELSE
        RETURN NEW;
    END IF;
    IF going THEN
        RAISE EXCEPTION 'paste % is being deleted: its % cannot be changed',
            quote_literal(OLD.short_code), refused
            USING ERRCODE = '55006',
                  HINT = 'Use paste_extend(), which says false when it is too late, or store the paste anew under another short code.';
    END IF;
    RAISE EXCEPTION 'paste % has already given its body back: its % cannot be changed',
        quote_literal(OLD.short_code), refused
        USING ERRCODE = '55000', HINT = 'Store the paste anew under another short code.';
END $$;

-- step: pastes_return: a row whose content is locked waits for it outside of any claim
-- As in V4, with two more rules.
-- A row whose claim has given its reference back never gets it again, whoever puts it back, and takes
-- the key of its object along. The claim is read while the content row is locked: a release that comes later waits for that lock and then counts its
-- rows, and one that came first is seen.
-- No transaction waits for longer than two seconds: a forgotten one that holds a shared content row
-- must not keep a whole batch from being reset. A row whose content cannot be locked stays in
-- progress, under no claim, and so keeps its reference and is seen by whoever looks who needs the
-- content; retry_at after deletion_initiated_at is how the watchdog knows it, and puts it back later.
CREATE OR REPLACE FUNCTION pastes_return() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    -- In this transaction, for all its rows.
    waited_ms int := coalesce(nullif(current_setting('paste_cleanup.waited_ms', true), ''), '0');
    is_locked boolean := false;
    is_missing boolean := false;
    released record;
BEGIN
    -- The copy of another server's pastes, where nobody but the subscription writes: what comes back
    -- was judged there, and its content may not have been copied yet.
    PERFORM FROM pg_subscription_rel WHERE srrelid IN (TG_RELID, 'content'::regclass);
    IF FOUND THEN
        RETURN NEW;
    END IF;
    LOOP
        PERFORM FROM content WHERE content_hash = NEW.content_hash FOR KEY SHARE SKIP LOCKED;
        is_locked := FOUND;
        EXIT WHEN is_locked;
        -- In this order: content that a release is about to delete is locked first, then gone.
        PERFORM FROM content WHERE content_hash = NEW.content_hash;
        is_missing := NOT FOUND;
        EXIT WHEN is_missing OR waited_ms >= 2000;
        PERFORM pg_sleep(0.01);
        waited_ms := waited_ms + 10;
        PERFORM set_config('paste_cleanup.waited_ms', waited_ms::text, true);
    END LOOP;
    -- Whoever holds the content may be the release of this very row. The fleet itself knows better: it
    -- has locked the claim.
    IF NOT is_locked AND NOT is_missing AND OLD.claim_id IS NOT NULL
       AND current_setting('paste_cleanup.may_defer', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'paste % cannot be put back now: another transaction holds its content row locked',
            quote_literal(OLD.short_code)
            USING ERRCODE = '55P03', HINT = 'Try again in a few seconds.';
    END IF;
    SELECT c.heirs, c.doomed_keys INTO released
      FROM deletion_claims c
     WHERE c.id = OLD.claim_id AND c.claimed_at = OLD.deletion_initiated_at
       AND c.released_at IS NOT NULL
       -- Not by this very transaction: a release that takes this row out of its batch.
       AND NOT (c.released_at = now() AND c.xmin = pg_current_xact_id()::xid);
    IF FOUND THEN
        NEW.content_hash := NULL;
        -- Whoever works on the claim may delete that object, too, which does no harm.
        NEW.doomed_key := coalesce(NEW.doomed_key,
            released.doomed_keys[array_position(released.heirs, OLD.short_code)]);
        RETURN NEW;
    END IF;
    IF is_missing AND current_setting('paste_cleanup.keep_missing', true) IS DISTINCT FROM 'on' THEN
        RAISE LOG 'paste % comes back from deletion without its body, which is gone: the count was too low',
            quote_literal(NEW.short_code);
        NEW.content_hash := NULL;
    END IF;
    -- Missing content that stays named: the brake gave the claim back.
    IF is_locked OR is_missing THEN
        RETURN NEW;
    END IF;
    NEW.deletion_status := 'DELETION_IN_PROGRESS';
    NEW.deletion_initiated_at := now();
    NEW.claim_id := NULL;
    NEW.last_error := 'another transaction holds its content row locked';
    IF NEW.retry_at IS NULL OR NEW.retry_at <= now() OR NEW.retry_at = 'infinity' THEN
        NEW.retry_at := now() + interval '1 minute';
    END IF;
    RETURN NEW;
END $$;
-- In the same transaction: replacing a function takes its settings away.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_return() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('GRANT SELECT ON deletion_claims TO %s',
                   (SELECT proowner::regrole FROM pg_proc WHERE oid = 'pastes_return()'::regprocedure));
END $$;

-- step: always: pastes_return: finds the tables of this schema and no others
-- Also after the schema was renamed.
DO $$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'content'::regclass);
BEGIN
    PERFORM FROM pg_proc
      WHERE oid = 'pastes_return()'::regprocedure
        AND proconfig @> ARRAY[format('search_path=%s, pg_temp', home)];
    IF NOT FOUND THEN
        EXECUTE format('ALTER FUNCTION pastes_return() SET search_path = %s, pg_temp', home);
    END IF;
END $$;

-- step: always: pastes_return may read claims
DO $$
DECLARE
    runs_as oid := (SELECT proowner FROM pg_proc WHERE oid = 'pastes_return()'::regprocedure);
BEGIN
    IF NOT has_table_privilege(runs_as, 'deletion_claims', 'SELECT') THEN
        EXECUTE format('GRANT SELECT ON deletion_claims TO %s', runs_as::regrole);
    END IF;
END $$;

-- step: always: pastes_guard and pastes_return fire always
-- Also in sessions with session_replication_role = replica: bulk imports, and whatever applies
-- changes of another server.
DO $$
BEGIN
    PERFORM FROM pg_trigger t
      JOIN pg_attribute a ON a.attrelid = t.tgrelid AND a.attname = 'short_code'
     WHERE t.tgrelid = 'pastes'::regclass AND t.tgname = 'pastes_guard' AND a.attnum = ANY (t.tgattr);
    IF NOT FOUND THEN
        CREATE OR REPLACE TRIGGER pastes_guard
            BEFORE UPDATE OF expires_at, content_hash, short_code ON pastes
            FOR EACH ROW WHEN (OLD.deletion_status <> 'NOT_EXPIRED' OR OLD.content_hash IS NULL)
            EXECUTE FUNCTION pastes_guard();
    END IF;
    PERFORM FROM pg_trigger
      WHERE tgrelid = 'pastes'::regclass AND tgname IN ('pastes_guard', 'pastes_return')
        AND tgenabled <> 'A';
    IF FOUND THEN
        ALTER TABLE pastes ENABLE ALWAYS TRIGGER pastes_guard;
        ALTER TABLE pastes ENABLE ALWAYS TRIGGER pastes_return;
    END IF;
END $$;

-- step: always: content: created_at has a default
-- Content that a writer stores without a time counts as old.
DO $$
BEGIN
    PERFORM FROM pg_attribute
      WHERE attrelid = 'content'::regclass AND attname = 'created_at' AND NOT atthasdef;
    IF FOUND THEN
        ALTER TABLE content ALTER COLUMN created_at SET DEFAULT now();
    END IF;
END $$;
