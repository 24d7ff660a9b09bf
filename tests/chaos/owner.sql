-- What else lives in the same database: tables of the paste service's own, and their triggers.

-- Refers to pastes, with an index.
CREATE TABLE comments (short_code text REFERENCES pastes ON UPDATE CASCADE ON DELETE CASCADE);
CREATE INDEX ON comments (short_code);
-- And without one.
CREATE TABLE likes (short_code text REFERENCES pastes ON UPDATE CASCADE ON DELETE CASCADE);
-- Keeps its paste from being deleted.
CREATE TABLE invoices (short_code text PRIMARY KEY REFERENCES pastes ON UPDATE CASCADE);
-- What was deleted, for the statistics.
CREATE TABLE deleted_pastes (short_code text, deleted_at timestamptz DEFAULT now());

CREATE FUNCTION owner_welcomes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO comments SELECT NEW.short_code FROM generate_series(1, abs(hashtext(NEW.short_code)) % 3);
    INSERT INTO likes SELECT NEW.short_code WHERE abs(hashtext(NEW.short_code)) % 5 = 0;
    INSERT INTO invoices SELECT NEW.short_code WHERE abs(hashtext(NEW.short_code)) % 97 = 0;
    RETURN NULL;
END $$;
CREATE TRIGGER owner_welcomes AFTER INSERT ON pastes
    FOR EACH ROW EXECUTE FUNCTION owner_welcomes();

CREATE FUNCTION owner_archives() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_pastes (short_code) VALUES (OLD.short_code);
    RETURN NULL;
END $$;
CREATE TRIGGER owner_archives AFTER DELETE ON pastes
    FOR EACH ROW EXECUTE FUNCTION owner_archives();

-- Pastes that cannot be deleted, in three ways. A renamed paste stays what it was.
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
