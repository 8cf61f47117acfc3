"""Decisions of the pipelines: evidence, reports, archives and skew."""
