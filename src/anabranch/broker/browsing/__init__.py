"""Serves admin calls about logs: finds positions, walks backlogs, looks into lanes, reads entries, counts.

Nothing here runs while messages are sent or received.
"""
