-- The newest migration that this database has completed.
-- Parameters: none. Always one row; NULL means no migration was completed.
-- 42P01 (undefined_table) means that the database was never migrated.
SELECT max(version) FROM cleanup_migrations;
