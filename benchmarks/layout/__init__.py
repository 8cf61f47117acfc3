"""The cost of splits and merges for producers and consumers."""
