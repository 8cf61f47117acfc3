"""Records of topics, subscriptions and brokers in a store with compare-and-set, watches and leases.

This package must not know segments' contents or connections.
"""
