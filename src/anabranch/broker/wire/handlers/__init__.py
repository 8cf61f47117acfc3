"""What the broker does with each command, a short module per family.

A handler takes the connection and the command. A plain function answers at once; a coroutine function is a
request that may wait, and runs beside the others. What either raises becomes an answer in the form of its
command, so no handler replies to its own failures.
"""
