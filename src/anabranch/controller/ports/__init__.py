"""The ports of the controller: the segments that it needs, and the leader of a topic that it offers.

This package holds interfaces and their values; it must not know any adapter.
"""
