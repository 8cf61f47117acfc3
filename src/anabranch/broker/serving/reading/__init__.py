"""The strategies by which subscriptions read: one for each subscription type, chosen in `strategies.py`.

A strategy decides which entry goes to which consumer next, and never waits. Cursors, timers and reports
belong to `subscription`.
"""
