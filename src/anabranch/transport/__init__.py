"""Connections: the protocol's machines on real or simulated sockets."""
