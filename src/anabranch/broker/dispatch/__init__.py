"""Pure decisions about which consumer gets the next entry of a log.

This package must not read a log, write to a connection, wait, or look at a clock.
"""
