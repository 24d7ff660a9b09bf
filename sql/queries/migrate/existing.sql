-- Which of the paste service's own tables exist?
-- Parameters: none. Zero rows: none, the migration creates them.
SELECT t FROM unnest(ARRAY['pastes', 'content']) AS t WHERE to_regclass(t) IS NOT NULL;
