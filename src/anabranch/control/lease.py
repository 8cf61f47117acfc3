"""The right of a control process to act: its session with the metadata store.

The lease and the term of a topic stop a former leader at different places, and neither replaces the other.
Pulsar knows no term, so the lease stops calls to Pulsar. Records know no session: a store starts
another one by itself, in which writes of a former leader would pass, so the term in each record stops them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from anabranch.errors import ServiceNotReadyError
from anabranch.metadata.store import MetadataStore


class SessionStore(MetadataStore, Protocol):
    """A metadata store whose session may end while the process lives."""

    def session_left_s(self) -> float:
        """Seconds for which the session is certain to exist, by the clock of this process."""


class SessionLease:
    """One session; `lost` is set when it has ended.

    A store may start another session by itself, which has no claim to the topics that this process led
    before. So a lost session stays lost.
    """

    def __init__(self, store: SessionStore, lost: asyncio.Event) -> None:
        self._store = store
        self._lost = lost

    def check(self) -> None:
        """Raise ServiceNotReadyError unless the session of this process is known to live."""
        if self._lost.is_set():
            raise ServiceNotReadyError("the session of this process with the metadata store was lost")
        if self._store.session_left_s() <= 0:
            raise ServiceNotReadyError(
                "the metadata store has not confirmed the session of this process in time"
            )
