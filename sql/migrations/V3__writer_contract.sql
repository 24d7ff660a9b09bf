-- The contract for the paste service: functions to put, extend and expire a paste, and the triggers
-- that protect rows which are being deleted.
--
-- The functions run with the caller's rights and inside the caller's transaction. If you write your own
-- statements (more columns, another language), follow the rules above each function in their order.
--
-- Rules for readers:
--   * Treat an expired paste as gone, whatever its row says.
--   * Read an object under content.s3_key, never under a key derived from the hash.
-- Rules for every program:
--   * Never `DELETE FROM content WHERE ref_count = 0`. Rows with a hash `audit:<key>` reserve the keys
--     of deleted orphans permanently; only a decrement or an audit deletes content.
--   * Never accept a content_hash from a client: compute it from the uploaded bytes. Otherwise a client
--     that sends the hash of another user's paste gets its body.

-- step: paste_put: store a paste and count its reference
-- Rules, if you write your own:
--   1. Upload first, under a key that was never used before (`<hash>/<random>`). Keys are not
--      reused, so a late delete of an old upload cannot hit a new object.
--   2. Lock the content row first, then insert the paste, then count. With one put per transaction
--      this order cannot deadlock, neither with another put nor with a decrement. (A put can deadlock
--      if its short code belongs to a paste that is being reset: repeat it.)
--   3. Count only if the paste was really inserted: a repeated request must not count twice.
--   4. Count by upsert and use the s3_key it returns: another upload of the same text may have won.
--   5. Delete an unused upload only after the commit, or after a rollback that you know of. Never
--      delete it if you do not know whether the commit happened.
--   6. If you do not know, upload again under another fresh key and repeat the put with that key. With
--      the old key, the repetition could come after the paste has expired and its object was deleted:
--      it would store content without an object, which other pastes would share. After the repetition
--      is committed, the old upload may be deleted if no content row has its key.
--
-- outcome       stored        the paste is inserted and counted; its object is under s3_key
--               duplicate     the short_code is taken, nothing was inserted or counted; s3_key is the
--                             object of the existing paste, NULL if it has none any more. Either your
--                             own request, repeated, or, with random codes, another paste: compare
--                             its content_hash to find out
--               needs_upload  p_s3_key was NULL and the hash is not known: upload under a fresh
--                             key and call again; nothing was inserted
-- drop_upload   true if no row uses the object under p_s3_key: delete it after the commit.
--               Never true for a live object, not even for a put repeated against rule 6.
-- Raises 22023 (invalid_parameter_value) for a missing or empty short_code, hash or key, and 23505
-- (unique_violation) if p_s3_key already belongs to other content: the audit reserves the keys of
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
        RAISE EXCEPTION 'paste_put: p_s3_key of paste % is empty; pass NULL to find out whether an upload is needed',
            quote_literal(p_short_code) USING ERRCODE = '22023';
    END IF;

    -- Waits for a decrement that may be deleting this content row, and finds nothing if it did.
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
        -- The current time, not the transaction's: a decrement must be able to see that content was
        -- stored again after its batch was claimed.
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

-- step: paste_extend: set another expiry (NULL: never)
-- Rules, if you write your own: extend only a NOT_EXPIRED row that still has its reference, tested in
-- the WHERE of the UPDATE itself (a claim may commit after an earlier SELECT); and clear the retry
-- columns, which belong to the old expiry.
-- Returns false if it is too late: the paste does not exist, is being deleted, or has no reference any
-- more.
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
    'Sets another expiry; false if the paste does not exist or is already being deleted.';

-- step: paste_expire_now: expire a paste because its user deleted it
-- Rules, if you write your own: never DELETE the row, its reference would stay counted forever; set
-- expires_at, and the fleet deletes the paste.
-- Returns false if there was nothing to do: it does not exist, is expired already, or is being deleted.
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
    'Expires a paste now; the next run erases it. False: nothing to do.';

-- step: pastes_guard: refuse changes to a row that is being deleted
-- A paste that is being deleted, or has no reference any more, cannot be made live again: its object may
-- already be deleted. Nor may its short code change, by which a claim recognises its rows. The only
-- change allowed is the fleet's own: a row that leaves DELETION_IN_PROGRESS may set its content_hash to
-- NULL in the same UPDATE.
CREATE OR REPLACE FUNCTION pastes_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    in_progress CONSTANT boolean := OLD.deletion_status = 'DELETION_IN_PROGRESS';
    refused text;
BEGIN
    IF NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
        refused := 'expires_at';
    ELSIF NEW.content_hash IS DISTINCT FROM OLD.content_hash
          AND NOT (in_progress AND NEW.content_hash IS NULL
                         AND NEW.deletion_status <> 'DELETION_IN_PROGRESS') THEN
        refused := 'content_hash';
    ELSIF in_progress AND NEW.short_code IS DISTINCT FROM OLD.short_code THEN
        refused := 'short_code';
    ELSE
        RETURN NEW;
    END IF;
    IF in_progress THEN
        RAISE EXCEPTION 'paste % is being deleted: its % cannot be changed',
            quote_literal(OLD.short_code), refused
            USING ERRCODE = '55006',
                  HINT = 'Use paste_extend(), which returns false when it is too late, or store the paste again under another short code.';
    END IF;
    RAISE EXCEPTION 'paste % has no content any more: its % cannot be changed',
        quote_literal(OLD.short_code), refused
        USING ERRCODE = '55000', HINT = 'Store the paste again under another short code.';
END $$;

-- step: always: pastes_guard on pastes
-- OF these columns only, so that claims, which are most of the updates, never call it.
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

-- step: pastes_verify_content: verify that the content of a row that is reset still exists
-- Before a decrement deletes a content row, it searches for other pastes that reference it, but not among
-- claimed rows (see pastes_content_hash_idx). If ref_count was right there are none; if it was too low,
-- the content of a claimed row may be deleted. So every UPDATE that resets such a row verifies that its
-- content row exists, and locks it until the commit. The lock waits for a decrement that is about to
-- delete the content, and makes a later decrement wait, which then finds the row.
-- A row whose content is deleted is reset without its hash, and cannot be extended any more. last_error
-- keeps the hash, for an operator who restores the content.
-- A row whose claim was decremented never gets its reference again, whichever statement resets it, and
-- takes over the key of its object. The claim is read while the content row is locked: a decrement that
-- comes later waits for that lock and then counts its rows; one that came first is visible.
-- No transaction waits longer than two seconds in total: a forgotten transaction that has a shared
-- content row locked must not keep a whole batch from being reset. A row whose content row cannot be
-- locked stays in progress without a claim, so it keeps its reference, and every search for references
-- finds it. The watchdog recognises it by retry_at > deletion_initiated_at and by the first words of
-- last_error, and resets it later.
-- Runs with its owner's rights: a role that may change a status need not be able to read content.
CREATE OR REPLACE FUNCTION pastes_verify_content() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    -- Total wait of this transaction, for all its rows.
    waited_ms int := coalesce(nullif(current_setting('paste_cleanup.waited_ms', true), ''), '0');
    is_locked boolean := false;
    is_missing boolean := false;
    missing text;
    decremented record;
BEGIN
    -- A subscriber's copy of another server's pastes: the publisher has verified the row, and its
    -- content may not have been copied yet.
    PERFORM FROM pg_subscription_rel WHERE srrelid IN (TG_RELID, 'content'::regclass);
    IF FOUND THEN
        RETURN NEW;
    END IF;
    LOOP
        PERFORM FROM content WHERE content_hash = NEW.content_hash FOR KEY SHARE SKIP LOCKED;
        is_locked := FOUND;
        EXIT WHEN is_locked;
        -- In this order: content that a decrement is deleting is first locked, then missing.
        PERFORM FROM content WHERE content_hash = NEW.content_hash;
        is_missing := NOT FOUND;
        EXIT WHEN is_missing OR waited_ms >= 2000;
        PERFORM pg_sleep(0.01);
        waited_ms := waited_ms + 10;
        PERFORM set_config('paste_cleanup.waited_ms', waited_ms::text, true);
    END LOOP;
    -- The transaction that has the content row locked may be the decrement of this very row. Only the
    -- fleet itself can rule that out: it has locked the claim.
    IF NOT is_locked AND NOT is_missing AND OLD.claim_id IS NOT NULL
       AND current_setting('paste_cleanup.may_defer', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'paste % cannot be reset now: another transaction has locked its content row',
            quote_literal(OLD.short_code)
            USING ERRCODE = '55P03', HINT = 'Try again in a few seconds.';
    END IF;
    SELECT c.pending_owners, c.pending_s3_keys INTO decremented
      FROM deletion_claims c
     WHERE c.id = OLD.claim_id AND c.claimed_at = OLD.deletion_initiated_at
       AND c.decremented_at IS NOT NULL
       -- Except by this transaction: a decrement that fails this row takes it out of its batch.
       AND NOT (c.decremented_at = now() AND c.xmin = pg_current_xact_id()::xid);
    IF FOUND THEN
        NEW.content_hash := NULL;
        -- The worker of the claim may delete that object as well, which does no harm.
        NEW.pending_s3_key := coalesce(NEW.pending_s3_key,
            decremented.pending_s3_keys[array_position(decremented.pending_owners, OLD.short_code)]);
        RETURN NEW;
    END IF;
    IF is_missing AND current_setting('paste_cleanup.keep_missing', true) IS DISTINCT FROM 'on' THEN
        missing := format('content row %s was missing', encode(NEW.content_hash, 'hex'));
        RAISE LOG 'paste % is reset without its content: % (another program deleted it, or its ref_count was too low)',
            quote_literal(NEW.short_code), missing;
        -- Behind the earlier error: its first words tell whether the worker died (claim/claim.sql).
        NEW.last_error := left(concat_ws('; ', left(NEW.last_error, 300), missing), 500);
        NEW.content_hash := NULL;
    END IF;
    -- Missing content may keep its hash: the safety brake released the claim.
    IF is_locked OR is_missing THEN
        RETURN NEW;
    END IF;
    NEW.deletion_status := 'DELETION_IN_PROGRESS';
    NEW.deletion_initiated_at := now();
    NEW.claim_id := NULL;
    NEW.last_error := 'waits for its content row: another transaction has locked it';
    IF NEW.retry_at IS NULL OR NEW.retry_at <= now() OR NEW.retry_at = 'infinity' THEN
        NEW.retry_at := now() + interval '1 minute';
    END IF;
    RETURN NEW;
END $$;
-- In the same transaction: CREATE OR REPLACE drops the settings of a function.
REVOKE ALL ON FUNCTION pastes_verify_content() FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_verify_content() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('GRANT SELECT ON deletion_claims TO %s',
                   (SELECT proowner::regrole FROM pg_proc WHERE oid = 'pastes_verify_content()'::regprocedure));
END $$;

-- step: pastes_verify_content: owned by the owner of content
-- The role that migrates may lose its rights later. It stays the owner if the owner of content may not
-- own functions in this schema.
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

-- step: always: pastes_verify_content: search_path is the schema of the tables
-- Again after the schema was renamed.
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

-- step: always: pastes_guard and pastes_verify_content fire in every session
-- Also with session_replication_role = replica, as in bulk imports and when changes of another server
-- are applied.
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
