-- Coming back from deletion.

-- step: pastes_return: what a row that comes back from deletion may keep
-- Before a body is doomed, a release looks for other pastes that need it, but not among those that the
-- fleet has claimed (see pastes_content_hash_idx). With right counts there are none; with a count
-- that was too low the body may be gone under a row in progress. So whoever puts such a row back
-- must see that its body is still there, and hold on to it until the commit: the lock waits for a
-- release that is about to doom the body, and keeps a later one waiting, which then finds the row.
-- A row whose body is gone comes back without it, and nobody can extend it.
-- Runs with its owner's rights: whoever may change a status need not be able to read content.
CREATE OR REPLACE FUNCTION pastes_return() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM content WHERE content_hash = NEW.content_hash FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE LOG 'paste % comes back from deletion without its body, which is gone: the count was too low',
            quote_literal(NEW.short_code);
        NEW.content_hash := NULL;
    END IF;
    RETURN NEW;
END $$;

-- step: pastes_return: finds the tables of this schema and no others, and serves no others
REVOKE ALL ON FUNCTION pastes_return() FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_return() SET search_path = %I, pg_temp', current_schema());
END $$;

-- step: pastes_return: belongs to whom content belongs to
-- Whoever migrates may lose their rights one day. They keep it if the owner may not own functions
-- here.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION pastes_return() OWNER TO %s',
                   (SELECT relowner::regrole FROM pg_class WHERE oid = 'content'::regclass));
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END $$;

-- step: always: pastes_return on pastes
DO $$
BEGIN
    PERFORM FROM pg_trigger WHERE tgrelid = 'pastes'::regclass AND tgname = 'pastes_return';
    IF NOT FOUND THEN
        CREATE TRIGGER pastes_return BEFORE UPDATE OF deletion_status ON pastes
            FOR EACH ROW WHEN (OLD.deletion_status = 'DELETION_IN_PROGRESS'
                               AND NEW.deletion_status = 'NOT_EXPIRED'
                               AND NEW.content_hash IS NOT NULL)
            EXECUTE FUNCTION pastes_return();
    END IF;
END $$;
