"""Networks of the measured table, written from their public definitions."""
