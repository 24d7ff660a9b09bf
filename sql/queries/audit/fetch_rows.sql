-- Audit: fetches the next keys of audit/open_rows.sql.
-- Parameters: none. Zero rows: the end of this range.
FETCH FORWARD 2000 FROM audit_rows
