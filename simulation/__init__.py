"""Whole clusters in virtual time from one seed, their judges, and harnesses of real processes for tests."""
