"""Runs: handlers that get the messages of a consumer, many at a time."""
