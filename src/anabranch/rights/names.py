"""Which role owns the name of a producer or consumer: the role that uses it. Pure.

A role is a `principal` here; it is empty without authentication, and in records that a broker without
authentication wrote. An empty principal excludes no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_SEPARATOR = "\n"
"""Between a producer's name and its principal; names have no control characters."""


def is_foreign(holder: str, asking: str) -> bool:
    """Return whether a name that `holder` has is closed to `asking`."""
    return bool(holder) and bool(asking) and holder != asking


def bound_name(name: str, principal: str) -> str:
    """Return the name under which a log stores the sequence ids of a role's producer.

    Producers of two roles never share sequence ids, so the messages of one role cannot make those of the
    other look like repetitions.
    """
    return f"{name}{_SEPARATOR}{principal}" if principal else name


def stored_names(name: str, principal: str) -> tuple[str, ...]:
    """Return the stored names whose sequence ids apply to a producer, also from before authentication."""
    return (bound_name(name, principal), name) if principal else (name,)


def has_stored(name: str, principal: str, known: Iterable[Collection[str]]) -> bool:
    """Return whether this role has stored sequence ids under the name; `known` has the stored names."""
    bound = bound_name(name, principal)
    return any(bound in names for names in known)


def roles_have_stored(name: str, known: Iterable[Collection[str]]) -> bool:
    """Return whether any role has stored sequence ids under the name."""
    prefix = name + _SEPARATOR
    return any(stored.startswith(prefix) for names in known for stored in names)
