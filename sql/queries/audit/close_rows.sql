-- Audit: this range is done.
CLOSE audit_rows
