-- What the checker must know and the product does not keep: every content row that ever was.
CREATE TABLE chaos_incarnations (content_hash bytea, s3_key text);
CREATE FUNCTION chaos_remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_incarnations VALUES (NEW.content_hash, NEW.s3_key);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_remember AFTER INSERT ON content
    FOR EACH ROW EXECUTE FUNCTION chaos_remember();
