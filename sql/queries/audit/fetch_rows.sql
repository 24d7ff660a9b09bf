-- Audit: the next keys. Zero rows: that was the last of this range.
FETCH FORWARD 2000 FROM audit_rows
