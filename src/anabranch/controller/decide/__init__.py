"""Pure decisions of a leader: operations on layouts, groups of consumers, admission, retention.

Functions take records and layouts and return records; this package must not wait, store, log or read a clock.
"""
