-- What the checker must know and the product does not keep: every content row and every paste that
-- ever was.
CREATE TABLE chaos_incarnations (content_hash bytea, s3_key text);
CREATE FUNCTION chaos_remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_incarnations VALUES (NEW.content_hash, NEW.s3_key);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_remember AFTER INSERT ON content
    FOR EACH ROW EXECUTE FUNCTION chaos_remember();

-- Nobody may so much as begin to delete a paste that lives.
CREATE TABLE chaos_violations (what text);
CREATE FUNCTION chaos_accuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_violations
    SELECT format('live paste %s: %s', OLD.short_code, lower(TG_OP));
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_accuse_claim AFTER UPDATE OF deletion_status ON pastes FOR EACH ROW
    WHEN (NEW.deletion_status <> 'NOT_EXPIRED'
          AND (OLD.expires_at IS NULL OR OLD.expires_at > now()))
    EXECUTE FUNCTION chaos_accuse();
CREATE TRIGGER chaos_accuse_delete AFTER DELETE ON pastes FOR EACH ROW
    WHEN (OLD.expires_at IS NULL OR OLD.expires_at > now())
    EXECUTE FUNCTION chaos_accuse();

CREATE TABLE chaos_pastes (short_code text);
CREATE FUNCTION chaos_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_pastes VALUES (NEW.short_code);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_count AFTER INSERT ON pastes
    FOR EACH ROW EXECUTE FUNCTION chaos_count();
