"""A client for bulk writers: logs of whole entries, which the broker keeps until they are released."""

from __future__ import annotations

from anabranch.client.api import AsyncClient
from anabranch.client.consume.trim_mark import release_up_to
from anabranch.client.options import PublishOptions
from anabranch.client.produce.entry_sender import EntrySender
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import BYTES


class BulkClient(AsyncClient):
    """Adds to the client of applications what a sink needs that stages rows and publishes them later."""

    async def append_to_log(self, log: str, name: str | None, subscription: str) -> AsyncProducer[bytes]:
        """Open a producer of whole entries; the broker keeps them until `subscription` releases them."""
        options = PublishOptions(
            name=name,
            batching=False,
            send_timeout_s=self.operation_timeout_s,
            initial_subscription=subscription,
        )
        producer = self._new_producer(log, BYTES, options)
        self._producers[producer] = None
        await producer.open()
        return producer

    async def release(self, log: str, subscription: str, ledger: int, entry: int) -> None:
        """Let the broker trim a log up to an entry; `subscription` keeps the entries behind it."""
        await release_up_to(self._connections(), log, subscription, ledger, entry)

    def entry_sender(self, log: str, name: str, *, managed: bool = False) -> EntrySender:
        """A sender of ready-made entries to one log; open and close it yourself."""
        return EntrySender(self._connections(), log, name, managed=managed)
