"""The segments that a consumer reads: one consumer for each of them, and the ways to learn which they are."""
