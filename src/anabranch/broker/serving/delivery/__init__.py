"""The parts that every strategy uses: consumers, counters, and the reader of the log.

Nothing here chooses a consumer.
"""
