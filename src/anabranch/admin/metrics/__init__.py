"""Metrics for Prometheus: the figures of each worker, and the exposition of all workers in one scrape.

A broker with 10,000 topics has 200,000 series. So collecting and writing them happens in slices between which
the event loop serves clients, and nothing here holds the whole text of this broker.
"""
