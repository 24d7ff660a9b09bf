-- The table owner's part of the database: its own tables that reference pastes, and its triggers.
-- No parameters; run once, before the fleet starts.

-- References pastes, with an index.
CREATE TABLE comments (short_code text REFERENCES pastes ON UPDATE CASCADE ON DELETE CASCADE);
CREATE INDEX ON comments (short_code);
-- References pastes, without an index.
CREATE TABLE likes (short_code text REFERENCES pastes ON UPDATE CASCADE ON DELETE CASCADE);
-- Keeps its paste from being deleted.
CREATE TABLE invoices (short_code text PRIMARY KEY REFERENCES pastes ON UPDATE CASCADE);
-- An archive of deleted pastes.
CREATE TABLE deleted_pastes (short_code text, deleted_at timestamptz DEFAULT now());

CREATE FUNCTION owner_adds_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO comments SELECT NEW.short_code FROM generate_series(1, abs(hashtext(NEW.short_code)) % 3);
    INSERT INTO likes SELECT NEW.short_code WHERE abs(hashtext(NEW.short_code)) % 5 = 0;
    INSERT INTO invoices SELECT NEW.short_code WHERE abs(hashtext(NEW.short_code)) % 97 = 0;
    RETURN NULL;
END $$;
CREATE TRIGGER owner_adds_rows AFTER INSERT ON pastes
    FOR EACH ROW EXECUTE FUNCTION owner_adds_rows();

CREATE FUNCTION owner_archives() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_pastes (short_code) VALUES (OLD.short_code);
    RETURN NULL;
END $$;
CREATE TRIGGER owner_archives AFTER DELETE ON pastes
    FOR EACH ROW EXECUTE FUNCTION owner_archives();

-- Some pastes cannot be deleted, for one of three reasons: the trigger raises an error or
-- suppresses the DELETE, or an invoice references them. A rename (which appends '~') does not
-- change that.
CREATE FUNCTION owner_refuses(code text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT abs(hashtext(rtrim(code, '~'))) % 61 IN (0, 1)
        OR EXISTS (SELECT FROM invoices WHERE short_code = code)
$$;
CREATE FUNCTION owner_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF abs(hashtext(rtrim(OLD.short_code, '~'))) % 61 = 0 THEN
        RAISE EXCEPTION 'the owner keeps %', OLD.short_code;
    ELSIF abs(hashtext(rtrim(OLD.short_code, '~'))) % 61 = 1 THEN
        RETURN NULL;
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER owner_refuses BEFORE DELETE ON pastes
    FOR EACH ROW EXECUTE FUNCTION owner_refuses();
