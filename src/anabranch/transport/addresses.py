"""Addresses of peers as text: `host:port`."""

from __future__ import annotations

from typing import Any


def address_of(peername: Any) -> str:
    """Return the text for the name of a peer as a transport gives it."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "unknown")


def host_of(address: str) -> str:
    return address.rpartition(":")[0]
