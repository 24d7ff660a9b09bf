-- The contract for the paste service: put, extend, expire now, and the trigger that guards them.
--
-- These functions run with the caller's rights and inside the caller's transaction. For statements of
-- your own (more columns, other languages) the rules are above each function: keep their order, the
-- rest is free.
-- Two rules for readers: an expired paste is gone, whatever its row says; and an object is read
-- under content.s3_key, never under a key made from the hash.
-- Two rules for every program: never `DELETE FROM content WHERE ref_count = 0`, for rows with a hash
-- `audit:<key>` keep the keys of deleted orphans for good, and content is deleted by a decrement or an
-- audit;
-- and never take a content_hash from a client unchecked: compute it from the bytes that were
-- uploaded, or a client that names the hash of another user's paste gets its body.

-- step: paste_put: store a paste and count its reference
-- Rules, if you write your own:
--   1. Upload first, under a key that was never used before (`<hash>/<random>`). Keys are not
--      reused, so a late delete of an old upload cannot hit a new object.
--   2. Lock the content row first, then insert the paste, then count: with one put to a
--      transaction this order cannot deadlock, neither with another put nor with a decrement. (A put
--      under a short code that is taken, by a paste that is just being reset, can: repeat it.)
--   3. Count only if the paste was really inserted: a repeated request must not count twice.
--   4. Count by upsert and use the s3_key it returns: someone else's upload may have won.
--   5. Commit, and only then drop an upload that is not in use. Drop it also after a rollback
--      that you know of; never when you do not know whether the commit happened.
--   6. When you do not know, upload again under another fresh key and repeat the put with that
--      one. Under the old key the repetition could come after the paste has expired and its
--      object is deleted: it would store content without an object, and others would share it.
--      After the repetition is committed, the old upload may go if no content row has its key.
--
-- outcome       stored        the paste is there and counted; its object is under s3_key
--               duplicate     this short_code is taken, nothing was inserted or counted; s3_key is
--                             the object of the paste that has it, NULL if it has none any more. Your
--                             own repeated request, or, with random codes, someone else's: compare
--                             the content_hash of that paste to tell
--               needs_upload  p_s3_key was NULL and the hash is not known: upload under a fresh
--                             key and call again; nothing was inserted
-- drop_upload   true when no row uses the object under p_s3_key: delete it after the commit.
--               Never true for a live object, not even for a put repeated against rule 6.
-- Raises 22023 (invalid_parameter_value) for a missing or empty short_code, hash or key, and 23505
-- (unique_violation) when p_s3_key already belongs to other content: the audit keeps the keys of
-- orphans that it deletes. Upload again under a fresh key, then call again.
CREATE OR REPLACE FUNCTION paste_put(
    p_short_code text, p_content_hash bytea, p_s3_key text, p_size_bytes bigint,
    p_expires_at timestamptz
) RETURNS TABLE (outcome text, s3_key text, drop_upload boolean)
LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    IF coalesce(p_short_code, '') = '' THEN
        RAISE EXCEPTION 'paste_put: p_short_code is missing or empty' USING ERRCODE = '22023';
    ELSIF coalesce(length(p_content_hash), 0) = 0 THEN
        RAISE EXCEPTION 'paste_put: p_content_hash of paste % is missing or empty',
            quote_literal(p_short_code) USING ERRCODE = '22023';
    ELSIF p_s3_key = '' THEN
        RAISE EXCEPTION 'paste_put: p_s3_key of paste % is empty; NULL asks whether an upload is needed',
            quote_literal(p_short_code) USING ERRCODE = '22023';
    END IF;

    -- Waits for a decrement that may be deleting this content, and finds nothing if it did.
    SELECT c.s3_key INTO s3_key FROM content c
     WHERE c.content_hash = p_content_hash FOR UPDATE;
    IF NOT FOUND AND p_s3_key IS NULL THEN
        outcome := 'needs_upload';
        drop_upload := false;
        RETURN NEXT;
        RETURN;
    END IF;

    INSERT INTO pastes (short_code, content_hash, expires_at)
    VALUES (p_short_code, p_content_hash, p_expires_at)
    ON CONFLICT (short_code) DO NOTHING;
    IF FOUND THEN
        outcome := 'stored';
        -- Its time is now, not when the transaction began: a decrement must be able to tell that
        -- content was stored again after its batch was claimed.
        INSERT INTO content AS c (content_hash, s3_key, size_bytes, ref_count, created_at)
        VALUES (p_content_hash, coalesce(s3_key, p_s3_key), p_size_bytes, 1, clock_timestamp())
        ON CONFLICT (content_hash) DO UPDATE SET ref_count = c.ref_count + 1
        RETURNING c.s3_key INTO s3_key;
    ELSE
        outcome := 'duplicate';
        s3_key := (SELECT c.s3_key FROM pastes p JOIN content c USING (content_hash)
                    WHERE p.short_code = p_short_code);
    END IF;

    drop_upload := p_s3_key IS NOT NULL
        AND NOT EXISTS (SELECT FROM content c WHERE c.s3_key = p_s3_key);
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION paste_put(text, bytea, text, bigint, timestamptz) IS
    'Stores a paste and counts its reference once: stored, duplicate or needs_upload.';

-- step: paste_extend: give a paste another expiry (NULL: never)
-- Rules, if you write your own: only a NOT_EXPIRED row that still has its reference may live
-- on, tested in the UPDATE's own WHERE (an earlier SELECT may be overtaken by a claim); and clear
-- the retry columns, they belong to the old expiry.
-- Returns false when the paste is gone, being deleted, or has already given up its content: it is
-- too late.
CREATE OR REPLACE FUNCTION paste_extend(p_short_code text, p_expires_at timestamptz)
RETURNS boolean LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    UPDATE pastes
       SET expires_at = p_expires_at, retry_at = NULL, attempts = 0, last_error = NULL
     WHERE short_code = p_short_code
       AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NOT NULL;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION paste_extend(text, timestamptz) IS
    'Gives a paste that is still whole another expiry; false: too late or not there.';

-- step: paste_expire_now: the owner deletes a paste
-- Rules, if you write your own: never DELETE the row, its reference would stay counted forever;
-- set expires_at and let the fleet do the rest.
-- Returns false when there was nothing to do: not there, expired already, or being deleted.
CREATE OR REPLACE FUNCTION paste_expire_now(p_short_code text)
RETURNS boolean LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    UPDATE pastes SET expires_at = now()
     WHERE short_code = p_short_code
       AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NOT NULL
       AND (expires_at IS NULL OR expires_at > now());
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION paste_expire_now(text) IS
    'Expires a paste now; the fleet erases it on its next run. False: nothing to do.';

-- step: pastes_guard: what no statement may change on a row that is being deleted
-- A paste that is being deleted, or has given up its reference, cannot be brought back to life: its
-- object may be gone already. Nor may its short code change, by which a claim knows its rows. The one
-- change let through is the fleet's own: a row that leaves DELETION_IN_PROGRESS may drop its
-- content_hash in the same UPDATE.
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
                  HINT = 'Use paste_extend(), which returns false when it is too late, or store the paste anew under another short code.';
    END IF;
    RAISE EXCEPTION 'paste % has already given up its content: its % cannot be changed',
        quote_literal(OLD.short_code), refused
        USING ERRCODE = '55000', HINT = 'Store the paste anew under another short code.';
END $$;

-- step: always: pastes_guard on pastes
-- OF these columns, so that the fleet's claims, by far the most updates, never call it.
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
END $$;

-- step: pastes_verify_content: what a row that is reset may keep
-- Before a decrement deletes content, it looks for other pastes that reference it, but not among those
-- that the fleet has claimed (see pastes_content_hash_idx). With right counts there are none; with a
-- count that was too low the content may be gone under a row in progress. So every UPDATE that resets
-- such a row must see that its content is still there, and keep it until the commit: the lock waits for
-- a decrement that is about to delete the content, and makes a later one wait, which then finds the row.
-- A row whose content is gone is reset without its hash, and cannot be extended any more.
-- A row whose claim has decremented its reference never gets it again, whichever statement resets it,
-- and takes over the key of its object. The claim is read while the content row is locked: a decrement
-- that comes later waits for that lock and then counts its rows, and one that came first is seen.
-- No transaction waits for longer than two seconds: a forgotten one that locks a shared content row
-- must not keep a whole batch from being reset. A row whose content cannot be locked stays in
-- progress, under no claim, and so keeps its reference and is found by every search for references;
-- retry_at after deletion_initiated_at is how the watchdog recognises it, and resets it later.
-- Runs with its owner's rights: a role that may change a status need not be able to read content.
CREATE OR REPLACE FUNCTION pastes_verify_content() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    -- In this transaction, for all its rows.
    waited_ms int := coalesce(nullif(current_setting('paste_cleanup.waited_ms', true), ''), '0');
    is_locked boolean := false;
    is_missing boolean := false;
    decremented record;
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
        -- In this order: content that a decrement is about to delete is locked first, then gone.
        PERFORM FROM content WHERE content_hash = NEW.content_hash;
        is_missing := NOT FOUND;
        EXIT WHEN is_missing OR waited_ms >= 2000;
        PERFORM pg_sleep(0.01);
        waited_ms := waited_ms + 10;
        PERFORM set_config('paste_cleanup.waited_ms', waited_ms::text, true);
    END LOOP;
    -- Whoever holds the content may be the decrement of this very row. The fleet itself knows better: it
    -- has locked the claim.
    IF NOT is_locked AND NOT is_missing AND OLD.claim_id IS NOT NULL
       AND current_setting('paste_cleanup.may_defer', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'paste % cannot be put back now: another transaction holds its content row locked',
            quote_literal(OLD.short_code)
            USING ERRCODE = '55P03', HINT = 'Try again in a few seconds.';
    END IF;
    SELECT c.pending_owners, c.pending_s3_keys INTO decremented
      FROM deletion_claims c
     WHERE c.id = OLD.claim_id AND c.claimed_at = OLD.deletion_initiated_at
       AND c.decremented_at IS NOT NULL
       -- Not by this very transaction: a decrement that takes this row out of its batch.
       AND NOT (c.decremented_at = now() AND c.xmin = pg_current_xact_id()::xid);
    IF FOUND THEN
        NEW.content_hash := NULL;
        -- Whoever works on the claim may delete that object, too, which does no harm.
        NEW.pending_s3_key := coalesce(NEW.pending_s3_key,
            decremented.pending_s3_keys[array_position(decremented.pending_owners, OLD.short_code)]);
        RETURN NEW;
    END IF;
    IF is_missing AND current_setting('paste_cleanup.keep_missing', true) IS DISTINCT FROM 'on' THEN
        RAISE LOG 'paste % comes back from deletion without its body, which is gone: the count was too low',
            quote_literal(NEW.short_code);
        NEW.content_hash := NULL;
    END IF;
    -- Missing content that stays named: the brake released the claim.
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
-- In the same transaction: a replaced function loses its settings.
REVOKE ALL ON FUNCTION pastes_verify_content() FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_verify_content() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('GRANT SELECT ON deletion_claims TO %s',
                   (SELECT proowner::regrole FROM pg_proc WHERE oid = 'pastes_verify_content()'::regprocedure));
END $$;

-- step: pastes_verify_content: has the owner of content
-- The role that migrates may lose its rights one day. It stays the owner if the owner of content may
-- not own functions here.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_verify_content() OWNER TO %s',
                   (SELECT relowner::regrole FROM pg_class WHERE oid = 'content'::regclass));
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END $$;

-- step: always: pastes_verify_content on pastes
DO $$
BEGIN
    PERFORM FROM pg_trigger WHERE tgrelid = 'pastes'::regclass AND tgname = 'pastes_verify_content';
    IF NOT FOUND THEN
        CREATE TRIGGER pastes_verify_content BEFORE UPDATE OF deletion_status ON pastes
            FOR EACH ROW WHEN (OLD.deletion_status = 'DELETION_IN_PROGRESS'
                               AND NEW.deletion_status = 'NOT_EXPIRED'
                               AND NEW.content_hash IS NOT NULL)
            EXECUTE FUNCTION pastes_verify_content();
    END IF;
END $$;

-- step: always: pastes_verify_content: finds the tables of this schema and no others
-- Also after the schema was renamed.
DO $$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'content'::regclass);
BEGIN
    PERFORM FROM pg_proc
      WHERE oid = 'pastes_verify_content()'::regprocedure
        AND proconfig @> ARRAY[format('search_path=%s, pg_temp', home)];
    IF NOT FOUND THEN
        EXECUTE format('ALTER FUNCTION pastes_verify_content() SET search_path = %s, pg_temp', home);
    END IF;
END $$;

-- step: always: pastes_verify_content may read claims
DO $$
DECLARE
    runs_as oid := (SELECT proowner FROM pg_proc WHERE oid = 'pastes_verify_content()'::regprocedure);
BEGIN
    IF NOT has_table_privilege(runs_as, 'deletion_claims', 'SELECT') THEN
        EXECUTE format('GRANT SELECT ON deletion_claims TO %s', runs_as::regrole);
    END IF;
END $$;

-- step: always: pastes_guard and pastes_verify_content fire always
-- Also in sessions with session_replication_role = replica: bulk imports, and whatever applies
-- changes of another server.
DO $$
BEGIN
    PERFORM FROM pg_trigger
      WHERE tgrelid = 'pastes'::regclass AND tgname IN ('pastes_guard', 'pastes_verify_content')
        AND tgenabled <> 'A';
    IF FOUND THEN
        ALTER TABLE pastes ENABLE ALWAYS TRIGGER pastes_guard;
        ALTER TABLE pastes ENABLE ALWAYS TRIGGER pastes_verify_content;
    END IF;
END $$;
