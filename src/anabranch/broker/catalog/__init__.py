"""Which logs exist in the stores of this broker: topics, segments, schemas, producer epochs, trimming.

This package must not know connections, commands or other brokers.
"""
