"""What admin calls ask of logs: find positions, walk backlogs, look into lanes, read entries, report figures.

Nothing here runs while messages are sent or received.
"""
