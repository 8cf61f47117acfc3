"""The simulation of whole clusters and its judges, the pytest plugin, and real processes for tests."""
