"""The consumers that applications use, and how a client opens them."""
