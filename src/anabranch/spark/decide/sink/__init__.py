"""Decisions of the sink: names, records and the numbers of republished rows."""
