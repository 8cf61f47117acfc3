"""Declarations on the verbs of a port: which verb opens a session, and which verb ends it.

A session is the result of a verb that keeps notifying its caller, such as the registration of a consumer.
When another broker calls such a verb, the session lives as long as the connection of the call. This module
must not know how brokers call each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ROLE = "_session_role"


class VerbSession(Protocol):
    """The result of a verb that opens a session."""

    @property
    def token(self) -> int:
        """A number that differs between all sessions that a broker process opens."""


@dataclass(frozen=True, slots=True)
class OpensSession:
    push: str
    """The parameter for a function of one value, called during the session and with None at its end."""
    lost: str
    """The verb that ends the session when the connection of the caller is lost."""


@dataclass(frozen=True, slots=True)
class EndsSession:
    session: str
    """The parameter that takes the session."""


def opens_session(*, push: str, lost: str) -> Callable[[F], F]:
    return lambda verb: _mark(verb, OpensSession(push, lost))


def ends_session(parameter: str) -> Callable[[F], F]:
    return lambda verb: _mark(verb, EndsSession(parameter))


def session_role(verb: Callable[..., Any]) -> OpensSession | EndsSession | None:
    """Return the declaration on a verb, or None for a verb without a session."""
    role: OpensSession | EndsSession | None = getattr(verb, _ROLE, None)
    return role


def _mark(verb: F, role: OpensSession | EndsSession) -> F:
    setattr(verb, _ROLE, role)
    return verb
