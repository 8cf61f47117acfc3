"""The byte formats of journal and ledger files, and the coordinates of entries in them. Pure."""
