"""From a delivered entry to the application: stream, queue and checkpoint consumers and what they share.

This package uses `produce` only to send dead letters.
"""
