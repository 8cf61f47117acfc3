"""One served log: its producers, its subscriptions with their cursors, its consumers, drains and rates.

The rooms, each of which may import only from those below it:

    log           the served log itself: producers, entry checks, compaction, live topics
    subscription  one subscription of a log: its cursor, its consumers, when it delivers, what it drained
    reading       the strategies: which entry goes to which consumer next
    lanes         entries of stuck keys and buckets that wait while the others go on
    delivery      what every strategy uses: consumers, counters, the reader of the log
    side_logs     copies of entries in logs of their own: spilled lanes and compacted messages
    rates         measured rates, limits of rates, and the clients that count against quotas

`context.py`, between `side_logs` and `rates`, has what every part is given when it is made. This package must
not know sockets, other logs, layouts, or which broker owns what.
"""
