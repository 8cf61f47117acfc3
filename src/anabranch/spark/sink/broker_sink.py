"""The logs of an exactly-once sink, reached through the client: the record log, and the steps of a commit.

A commit appends a pin, publishes every pinned batch that is not published yet, appends a done record, and
lets the broker trim both logs. If it crashes at any point, the next commit of the sink does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection

from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.net.connection_pool import RECONNECT
from anabranch.errors import AnabranchError, DataLossError, TopicNotFoundError
from anabranch.failpoints import ProcessFailpoints
from anabranch.model.sink_names import SINK_SUBSCRIPTION
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX
from anabranch.protocol.entries import decode_columns
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.sink.records import (
    Pending,
    Pin,
    Record,
    SinkState,
    decode_record,
    encode_record,
    fold,
)
from anabranch.spark.sink.hosts import SinkHost
from anabranch.spark.sink.publishing import Publication, may_succeed_later
from anabranch.spark.sink.staging import RowStager, SinkName, StagedEntries, StagingOptions, open_log

log = logging.getLogger("anabranch.spark")


class BrokerSink:
    """The sink port over the clients of one thread."""

    def __init__(self, clients: ThreadClient, host: SinkHost, namespace: str, sink_id: str) -> None:
        self._clients = clients
        self._host = host
        self._client = clients.bulk()
        self._name = SinkName(namespace, sink_id)
        self._last_record: RawEntry | None = None
        self._failpoints = ProcessFailpoints.from_text(os.environ.get("ANABRANCH_FAILPOINTS", ""))

    def state(self) -> SinkState:
        return self._clients.run(self._load())

    def stager(self, attempt: str, flush_bytes: int, compression: str | None) -> RowStager:
        options = StagingOptions(flush_bytes, compression)
        return RowStager(self._clients, self._host, self._name, attempt, options)

    def settle(self, pin: Pin | None, topics: Collection[str]) -> None:
        self._clients.run(self._settle(pin, topics))

    async def _settle(self, pin: Pin | None, topics: Collection[str]) -> None:
        # The pin is the moment of the commit. Before it, the staged rows are garbage that nothing refers to;
        # after it, every later commit is obliged to publish them. The state is read again after the append,
        # because another driver may have pinned the same batch first: then its pin counts and this one does
        # not. The numbers of rows follow from the pins alone, so two drivers that publish the same batch send
        # the same numbers, and brokers store each of them once.
        state = await self._load()
        if pin is not None and not state.has(pin.batch):
            await self._check_staged(pin)
            await self._failpoints.reach("sink.staged")
            await self._append(await self._host.marked(pin, topics, state))
            await self._failpoints.reach("sink.pinned")
            state = await self._load()
        if not state.pending:
            return
        last: RawEntry | None = None
        for pending in state.pending:
            last = await self._publish(pending, state.sink) or last
        await self._failpoints.reach("sink.published")
        await self._append(state.done())
        await self._failpoints.reach("sink.done")
        await self._release(last)

    async def _check_staged(self, pin: Pin) -> None:
        """Raise DataLossError if staged rows are gone, before a pin obliges later commits to publish them."""
        if not pin.rows or not await self._host.may_lack(self._name.rows, pin.start):
            return
        staged, rows = StagedEntries(self._host.read(self._name.rows, pin.start, pin.stop), pin), 0
        try:
            while (entries := await staged.read()) is not None:
                rows += sum(entry.raw.message_count for entry in entries)
        finally:
            await staged.close()
        if rows != pin.rows:
            raise DataLossError(
                f"rows of {pin.batch} were trimmed from {self._name.rows} before their batch was committed; "
                "run one job at a time with one sinkId, and write again"
            )

    async def _publish(self, pending: Pending, sink: str) -> RawEntry | None:
        """Publish a batch with as many attempts as it takes; return the last entry of its rows.

        Only the time without any progress is limited, so that a large batch may take as long as it needs.
        """
        limit_s = self._client.operation_timeout_s
        loop = asyncio.get_running_loop()
        failures, give_up_at = 0, loop.time() + limit_s
        name = f"{self._name.id}-{sink}"
        segments = self._host.segments(pending, name)
        while True:
            publication = Publication(self._client, self._host, segments, name, self._failpoints)
            try:
                if pending.pin.rows:
                    await publication.publish(pending, self._name.rows)
                return publication.last
            except AnabranchError as error:
                if publication.stored:
                    failures, give_up_at = 0, loop.time() + limit_s
                if not may_succeed_later(error) or loop.time() > give_up_at:
                    raise
                log.debug("publishing %s again after: %s", pending.pin.batch, error)
            finally:
                await publication.close()
            await asyncio.sleep(RECONNECT.delay(failures, self._clients.rng))
            failures += 1

    async def _append(self, record: Record) -> None:
        producer = await open_log(self._client, self._host, self._name.records)
        try:
            await producer.send(encode_record(record))
        finally:
            await producer.close()

    async def _load(self) -> SinkState:
        try:
            first, recent, next_ = await self._host.extent(self._name.records)
        except TopicNotFoundError:
            return SinkState()
        for start in (recent, first):
            records = await self._records(start, next_)
            state = fold(records, start, next_)
            if state is not None:
                return state
        raise DataLossError(
            f"the oldest records of {self._name.records} are gone, and no newer record replaces them"
        )

    async def _records(self, start: int, stop: int) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        reader = self._host.read(self._name.records, start, stop)
        try:
            while entries := await reader.read():
                for entry in entries:
                    self._last_record = entry
                    (value,) = decode_columns(entry.data, UNCOMPRESSED_BYTES_MAX).values
                    found.append((entry.first_index, decode_record(value or b"")))
        finally:
            await reader.close()
        return found

    async def _release(self, last: RawEntry | None) -> None:
        """Let the broker trim what is published. If this fails, the next commit does it."""
        try:
            for name, entry in ((self._name.records, self._last_record), (self._name.rows, last)):
                if entry is not None:
                    await self._client.release(name, SINK_SUBSCRIPTION, entry.ledger, entry.entry)
        except AnabranchError as error:
            log.debug("%s will be trimmed by a later commit: %s", self._name.rows, error)
