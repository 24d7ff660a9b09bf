-- Remembers that all steps of a migration were completed.
-- Parameters: $1 version, $2 name. Zero rows: it was remembered already.
INSERT INTO cleanup_migrations (version, name) VALUES ($1, $2) ON CONFLICT DO NOTHING;
