"""Decisions of the source: cuts, topologies, slices and partitions."""
