"""Judges of a simulated run: they watch the wire, the metadata and the logs, and must change nothing."""
