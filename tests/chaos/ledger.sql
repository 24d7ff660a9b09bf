-- What the checker must know and the product does not keep: every content row and every paste that
-- ever existed.
CREATE TABLE chaos_content (content_hash bytea, s3_key text);
CREATE FUNCTION chaos_record_content() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_content VALUES (NEW.content_hash, NEW.s3_key);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_record_content AFTER INSERT ON content
    FOR EACH ROW EXECUTE FUNCTION chaos_record_content();

-- A live paste must be neither claimed nor deleted.
CREATE TABLE chaos_violations (what text);
CREATE FUNCTION chaos_record_violation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_violations
    SELECT format('live paste %s: %s', OLD.short_code,
                  CASE TG_OP WHEN 'DELETE' THEN 'deleted' ELSE 'marked for deletion' END);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_claim_of_live_paste AFTER UPDATE OF deletion_status ON pastes FOR EACH ROW
    WHEN (NEW.deletion_status <> 'NOT_EXPIRED'
          AND (OLD.expires_at IS NULL OR OLD.expires_at > now()))
    EXECUTE FUNCTION chaos_record_violation();
CREATE TRIGGER chaos_delete_of_live_paste AFTER DELETE ON pastes FOR EACH ROW
    WHEN (OLD.expires_at IS NULL OR OLD.expires_at > now())
    EXECUTE FUNCTION chaos_record_violation();

-- Counts the pastes that were ever stored.
CREATE TABLE chaos_pastes (short_code text);
CREATE FUNCTION chaos_record_paste() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_pastes VALUES (NEW.short_code);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_record_paste AFTER INSERT ON pastes
    FOR EACH ROW EXECUTE FUNCTION chaos_record_paste();
