"""Leads topics; knows segments only through `ports.segments`, never the ledger or the wire protocol."""
