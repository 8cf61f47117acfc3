"""Real processes, certificates and ports for process tests, interop, examples and benchmarks."""
