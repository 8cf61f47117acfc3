"""Leads topics: layout changes, subscriptions, members and scaling.

`decide` holds the pure decisions, `ports` the interfaces to segments and leaders, `topic` one led
topic; `service.py` leads all topics of one process. The controller knows segments only through
`ports.segments`, and must not know the ledger or the wire protocol.
"""
