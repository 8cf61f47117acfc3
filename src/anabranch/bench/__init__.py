"""Benchmarks; each figure is compared with a peer in the same run."""
