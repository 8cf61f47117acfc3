"""Pulsar's binary protocol, sans IO: bytes in, commands and bytes out."""
