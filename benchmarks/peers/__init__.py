"""One client per module, each with the same jobs, and their comparison in one run."""
