"""The words of brokers about topics: layouts, names, schemas, and the registrations of group members.

This package must not know how messages are batched, ordered or acknowledged.
"""
