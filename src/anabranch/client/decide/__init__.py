"""Pure decisions of producers and consumers: batches, permits, acknowledgements, reading order, reconnection.

This package must not wait, read a clock or touch a connection.
"""
