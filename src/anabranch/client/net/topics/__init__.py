"""What brokers say about topics: layouts, names, schemas, and the registration of a consumer group's members.

This package must not know how messages are batched, ordered or acknowledged.
"""
