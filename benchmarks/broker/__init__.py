"""The broker seen from the wire: entries, connections, floods, scale, TLS and workers that die."""
