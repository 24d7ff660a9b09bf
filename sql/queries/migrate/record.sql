-- Records that all steps of a migration are complete.
-- $1 version, $2 name. Zero rows: it was recorded already.
INSERT INTO cleanup_migrations (version, name) VALUES ($1, $2) ON CONFLICT DO NOTHING;
