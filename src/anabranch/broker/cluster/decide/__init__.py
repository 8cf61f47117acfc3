"""Pure decisions of a broker among others: which broker should own a store, and the life of an owned store.

This package must not know event loops, clocks, storage or connections.
"""
