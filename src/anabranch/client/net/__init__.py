"""Connections to brokers, and what the client learns from them: layouts, owners of segments, assignments.

This package must not know how messages are batched, ordered or acknowledged.
"""
