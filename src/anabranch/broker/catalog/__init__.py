"""The logs in the stores of this broker: segments, classic topics, schemas, producer epochs, trimming.

This package must not know connections, commands or other brokers.
"""
