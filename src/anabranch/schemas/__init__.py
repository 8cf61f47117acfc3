"""Definitions of schemas (pure), for brokers, clients and Spark: reading them, and which fit together."""
