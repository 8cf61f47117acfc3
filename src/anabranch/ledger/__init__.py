"""Stores logs and cursors in one journal per store, with ledger files behind it, and reads them back.

This package must not know topics, segments, subscriptions or the wire.
"""
