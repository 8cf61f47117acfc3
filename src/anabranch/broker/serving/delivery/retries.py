"""How a client wants messages again after a negative acknowledgement."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.protocol.pb import pulsar_pb2 as pb

PAUSE_MS_MAX = 7 * 86_400_000
"""Longest pause of a slot; a client that asks for more gets this."""


class Retry(NamedTuple):
    """The wait before a slot goes on; it counts for subscriptions by key or bucket only."""

    pause_ms: int = 0
    park: str | None = None
    """Why the slot waits for an operator; None if it does not."""


AT_ONCE = Retry()


def retry_of(command: pb.CommandRedeliverUnacknowledgedMessages) -> Retry:
    """Return the wait that a REDELIVER asks for; one that names no messages means all, and all at once."""
    if not command.message_ids:
        return AT_ONCE
    park = command.park if command.HasField("park") else None
    return Retry(min(command.pause_ms, PAUSE_MS_MAX), park)
