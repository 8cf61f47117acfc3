"""Pure decisions of producers, consumers and connections, as functions and small machines.

This package must not wait, read a clock or touch a connection. Each module shows one worked example.
"""
