"""Where commands of clients arrive and replies leave: one connection, and one handler per family of commands.

This package must not store anything, and must not decide which consumer gets an entry.
"""
