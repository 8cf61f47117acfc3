"""The stores that a broker owns, calls between brokers, and routing to segment owners and topic leaders.

This package must not know the commands of clients.
"""
