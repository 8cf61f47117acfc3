"""The check of rights before a command is handled; `rights.table` says which right each command needs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from google.protobuf.message import Message

from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.errors import AuthorizationError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import Caller
from anabranch.rights.needs import MissingRightError
from anabranch.rights.rows import OPEN, OWN, PEER
from anabranch.rights.table import COMMANDS
from anabranch.security.audit import AuditEvent

_WITH_ORIGINAL: Final = (pb.CommandLookupTopic, pb.CommandPartitionedTopicMetadata)
"""Commands that a proxy may send with the role of its client."""


def admit(
    authorizer: Authorizer, caller: Caller, command: Message, *, is_peer: bool
) -> Coroutine[Any, Any, None] | None:
    """Return if the command may be handled, else raise AuthorizationError.

    Returns a coroutine that does the same if grants have to be read first; later commands of the connection
    wait for it.
    """
    line = COMMANDS.get(type(command))
    if line is None:
        raise AuthorizationError(f"{type(command).__name__} is not in the table of rights")
    if line is OWN or line is OPEN:
        return None
    if line is PEER:
        if is_peer:
            return None
        raise AuthorizationError("only brokers of this cluster may call each other")
    if not authorizer.enabled:
        return None
    if isinstance(command, _WITH_ORIGINAL) and command.original_principal not in ("", caller.principal):
        # The role of a proxy's client is proven once, with the connection.
        raise AuthorizationError("the command names another role than its connection speaks for")
    return authorizer.admit(caller, line.needs(command))


def refusal_of(command: Message, caller: Caller, address: str, error: AuthorizationError) -> AuditEvent:
    """A refused command, for the audit log."""
    resource, why = (
        (error.resource, error.reason) if isinstance(error, MissingRightError) else ("", str(error))
    )
    return AuditEvent(type(command).__name__, "refused", caller, address, resource, why)


def check_listed(commands: set[type[Message]]) -> None:
    """Raise AssertionError for a command that has a handler but no line in the table of rights."""
    missing = sorted(command.__name__ for command in commands - COMMANDS.keys())
    assert not missing, f"add lines to rights/table.py for {', '.join(missing)}"
