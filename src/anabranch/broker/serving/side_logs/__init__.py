"""Copies of entries in logs of their own: spilled lanes, and the messages that a compaction kept.

Nothing here knows consumers, nor how entries are delivered.
"""
