-- Postgres 17 and newer: lets transactions take as long as their statements may. One that a role or database
-- sets would end every long sort of an audit and every index of a migration.
-- Parameters: none. No rows.
SET transaction_timeout = 0
