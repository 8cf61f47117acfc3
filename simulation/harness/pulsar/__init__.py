"""Real Pulsar, BookKeeper and ZooKeeper processes from published packages, for tests and benchmarks."""
