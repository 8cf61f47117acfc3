"""The handler of each command, a short module per family.

A handler takes the connection and the command. A plain function answers at once; a coroutine function is a
request that may wait, and runs beside the others. The connection answers each error in the form of the
command, so no handler replies to its own errors.
"""
