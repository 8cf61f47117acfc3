"""Consumers of our client under load: handlers, and a hot key whose consumer hangs."""
