-- The contract for the paste service: put, extend, expire now, and the trigger that guards them.
--
-- These functions run with the caller's rights and inside the caller's transaction. Whoever writes
-- statements of their own (more columns, other languages) finds the rules above each function:
-- keep their order, the rest is free.
-- Two rules for readers: an expired paste is gone, whatever its row says; and a body is read
-- under content.s3_key, never under a key made from the hash.
-- Two rules for everybody: never `DELETE FROM content WHERE ref_count = 0`, for rows with a hash
-- `audit:<key>` keep the keys of deleted orphans for good, and bodies go by a release or an audit;
-- and never take a content_hash from a client unchecked: compute it from the bytes that were
-- uploaded, or whoever names another's hash gets that one's body.

-- step: paste_put: store a paste and count its reference
-- Rules, if you write your own:
--   1. Upload first, under a key that was never used before (`<hash>/<random>`). Keys are not
--      reused, so a late delete of an old incarnation cannot hit a new body.
--   2. Lock the content row first, then insert the paste, then count: with one put to a
--      transaction this order cannot deadlock, neither with another put nor with a release. (A put
--      under a short code that is taken, by a paste that is just being reset, can: repeat it.)
--   3. Count only if the paste was really inserted: a repeated request must not count twice.
--   4. Count by upsert and use the s3_key it returns: someone else's upload may have won.
--   5. Commit, and only then drop an upload that is not in use. Drop it also after a rollback
--      that you know of; never when you do not know whether the commit happened.
--   6. When you do not know, upload again under another fresh key and repeat the put with that
--      one. Under the old key the repetition could come after the paste has expired and its
--      object is deleted: it would store a body that is missing, and others would share it.
--      After the repetition is committed, the old upload may go if no content row has its key.
--
-- outcome       stored        the paste is there and counted; its body is under s3_key
--               duplicate     this short_code is taken, nothing was inserted or counted; s3_key is
--                             the body of the paste that has it, NULL if it has none any more. Your
--                             own repeated request, or, with random codes, someone else's: compare
--                             the content_hash of that paste to tell
--               needs_upload  p_s3_key was NULL and the body is not known: upload it under a fresh
--                             key and call again; nothing was inserted
-- drop_upload   true when no row uses the object under p_s3_key: delete it after the commit.
--               Never said about a live body, not even to a put repeated against rule 6.
-- Raises 22023 (invalid_parameter_value) for a missing or empty short_code, hash or key, and 23505
-- (unique_violation) when p_s3_key already belongs to another body: the audit keeps the keys of
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

    -- Waits for a release that may be deleting this body, and finds nothing if it did.
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
        -- Its time is now, not when the transaction began: a release must be able to tell that a
        -- body was stored again after its batch was claimed.
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
-- Rules, if you write your own: only a NOT_EXPIRED row that still holds its reference may live
-- on, tested in the UPDATE's own WHERE (an earlier SELECT may be overtaken by a claim); and clear
-- the retry columns, they belong to the expiry that is no more.
-- Returns false when the paste is gone, being deleted, or has already given its body back: tell
-- the owner that it is too late.
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
-- Rules, if you write your own: never DELETE the row, its reference would stay counted for ever;
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

-- step: pastes_guard: what nobody may change on a row that is going
-- A paste that is being deleted, or has given its reference back, cannot be brought back to life:
-- its body may be gone already. The one change let through is the fleet's own: a row that leaves
-- DELETION_IN_PROGRESS may drop its content_hash in the same UPDATE.
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

-- step: pastes_guard on pastes
-- OF these two columns, so that the fleet's claims, by far the most updates, never call it.
DO $$
BEGIN
    PERFORM FROM pg_trigger WHERE tgrelid = 'pastes'::regclass AND tgname = 'pastes_guard';
    IF NOT FOUND THEN
        CREATE TRIGGER pastes_guard BEFORE UPDATE OF expires_at, content_hash ON pastes
            FOR EACH ROW WHEN (OLD.deletion_status <> 'NOT_EXPIRED' OR OLD.content_hash IS NULL)
            EXECUTE FUNCTION pastes_guard();
    END IF;
END $$;
