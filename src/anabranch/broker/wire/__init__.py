"""Commands of clients arrive and replies leave here: connections, and a handler for each command.

This package must not store anything, and must not decide which consumer gets an entry.
"""
