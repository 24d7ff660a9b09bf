-- Postgres 17 and newer: lets transactions take as long as their statements may. A timeout set for a role
-- or database would end every long sort of an audit and every index build of a migration.
-- Parameters: none. No rows.
SET transaction_timeout = 0
