"""One served log: its producers, its subscriptions with their cursors, its consumers, drains and rates.

This package must not know sockets, other logs, layouts, or which broker owns what.
"""
