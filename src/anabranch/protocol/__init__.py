"""Pulsar's binary protocol without input and output: bytes in, commands and bytes out.

This package must not know sockets, clocks, topics or storage.
"""
