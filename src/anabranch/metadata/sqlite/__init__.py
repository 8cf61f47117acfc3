"""The metadata of one machine: SQLite, and the record log as its second copy."""
