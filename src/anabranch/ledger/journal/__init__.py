"""Group commit: one journal makes the entries and cursors of all logs durable."""
