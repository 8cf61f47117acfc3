"""Decisions of producers: which messages share an entry, how much may be sent, what a seal changes."""
