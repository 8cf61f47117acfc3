"""Clusters of real brokers and control processes in the simulated world."""
