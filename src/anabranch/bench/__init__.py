"""Figures beside a peer in the same run."""
