"""Benchmarks against real processes, as ratios to a peer measured in the same run."""
