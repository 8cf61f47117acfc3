"""The served log: its producers and what they may store, its compaction, and the log of a live topic.

Publishing belongs here, and everything that concerns all subscriptions of a log at once.
"""
