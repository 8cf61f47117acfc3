"""Decisions of consumers: permits, acknowledgements, order, retries, positions and seeks."""
