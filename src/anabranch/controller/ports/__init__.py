"""What the controller needs from the world (segments) and what it offers to brokers (the leader of a topic).

This package holds interfaces and their values; it must not know any adapter.
"""
