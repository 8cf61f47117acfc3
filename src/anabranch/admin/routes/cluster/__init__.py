"""Endpoints about brokers, the cluster and its settings."""
