"""Stored entries become Arrow batches."""
