"""The value that the parts of one producer share, and the failed batches that no caller has seen yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from anabranch.aio import TaskRegistry
from anabranch.client.decide.producing.credits import CreditWaits
from anabranch.client.decide.producing.exclusive_access import ExclusiveAccess
from anabranch.client.decide.producing.outgoing import Outgoing
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import PublishOptions, log
from anabranch.client.produce.encrypting import EntryEncryption
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.producer_schema import ProducerSchema
from anabranch.clock import Clock
from anabranch.errors import InvalidConfigurationError
from anabranch.protocol.compression import Compression
from anabranch.protocol.frames import MESSAGE_BYTES_MAX

KEPT_MAX = 1000
"""Failed batches that are kept for a caller; the producer logs them when there are more."""

METADATA_BYTES_MAX = 4096
"""Room left below the broker's limit for the metadata of an entry."""


class FailedBatches:
    """Failed batches, kept until a caller retrieves their errors or they are logged.

    A future that a caller looked at marks its batch as seen.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._kept: list[Outgoing] = []

    def add(self, batch: Outgoing) -> None:
        self._kept.append(batch)
        if len(self._kept) >= KEPT_MAX:
            self._kept = self._unseen()
            if len(self._kept) >= KEPT_MAX // 2:
                self.report()

    def take(self) -> list[Exception]:
        """Return the errors that no caller has seen, and forget them."""
        unseen, self._kept = self._unseen(), []
        return [batch.error for batch in unseen if batch.error is not None]

    def report(self) -> None:
        """Log the messages whose failure no caller has seen, and forget them."""
        unseen, self._kept = self._unseen(), []
        if unseen:
            count = sum(batch.count for batch in unseen)
            log.warning("%s: %d messages were not stored: %s", self._topic, count, unseen[-1].error)

    def _unseen(self) -> list[Outgoing]:
        return [batch for batch in self._kept if not batch.seen]


@dataclass(slots=True)
class ProducerParts:
    """Shared by the parts of one producer. Each of them gets this value when it is made."""

    name: str
    options: PublishOptions
    pool: ConnectionPool
    memory: Memory
    clock: Clock
    schema: ProducerSchema
    role: RoleTrouble
    failures: FailedBatches
    compression: Compression
    loop: asyncio.AbstractEventLoop
    tasks: TaskRegistry = field(default_factory=TaskRegistry)
    credit_waits: CreditWaits = field(default_factory=CreditWaits)
    access: ExclusiveAccess = field(default_factory=ExclusiveAccess)
    encryption: EntryEncryption | None = None
    """None if messages are sent unencrypted."""
    message_bytes_max: int = MESSAGE_BYTES_MAX - METADATA_BYTES_MAX
    """The largest message that the broker takes; a connection tells the limit of its broker."""

    def check_loop(self) -> None:
        """Raise if the caller runs on another event loop than the producer."""
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidConfigurationError("this producer belongs to another event loop")
