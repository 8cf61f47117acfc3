"""Producers and consumers of topics, for applications.

`net` holds connections and watches, `produce` and `consume` the two directions, `decide` pure decisions of
both. The client must not know any package of the server.
"""
