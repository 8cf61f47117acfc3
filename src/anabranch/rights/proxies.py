"""Decides, by Pulsar's rule, whether a proxy may speak for the role of its client. Pure."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.rights.callers import Caller


def fault_of_proxy(caller: Caller, proxies: Collection[str]) -> str:
    """Return why the caller cannot speak for its original role; empty if it can, or has none."""
    if caller.role not in proxies:
        if caller.original in ("", caller.role):
            return ""
        return f"{caller.role!r} is not a proxy, so it cannot speak for another role"
    if not caller.original:
        return f"the proxy {caller.role!r} does not name the role of its client"
    if caller.original in proxies:
        return f"the proxy {caller.role!r} cannot speak for another proxy"
    return ""
