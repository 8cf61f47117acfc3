"""Proofs about stored topics: that nothing is lost or out of order, and how load is spread."""
