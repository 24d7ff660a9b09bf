-- Audit: closes the cursor of audit/open_rows.sql at the end of a range.
-- Parameters: none. No rows.
CLOSE audit_rows
