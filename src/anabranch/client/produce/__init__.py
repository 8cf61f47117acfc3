"""From a call of `send` to the receipt: route, batch, send, follow a sealed segment, complete futures.

This package must not know consumers.
"""
