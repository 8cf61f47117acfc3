"""Which broker owns which store, calls between brokers, and routing to the owners of segments and leaders.

This package must not know the commands of clients.
"""
