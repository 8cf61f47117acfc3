"""Runs of whole clusters, or of storage alone, from one seed: the load, the faults and the healing.

A run must not judge; that is the work of `judges`.
"""
