"""Connections to brokers, and the news they bring: layouts, owners of segments, assignments.

`Reconnector` attaches a consumer, registration or watch again after a lost connection. This package must not
know how messages are batched, ordered or acknowledged.
"""
