"""One scrape of all workers: each worker writes its own figures, and the worker that is asked joins them.

A worker that does not answer in time is shown as down, and its figures are missing; the others are not held
up. Every sample has the label `worker`, so that a counter is always that of the same process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Final, Protocol

from prometheus_client import exposition
from prometheus_client.core import GaugeMetricFamily

from anabranch.admin.metrics.process import make_registry, process_parts
from anabranch.admin.metrics.quotas import quota_tables
from anabranch.admin.metrics.tables import Encode, Families, TextPart
from anabranch.admin.metrics.topics import collect_topics
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.remote_calls import Port
from anabranch.errors import AnabranchError, NotFoundError
from anabranch.metadata.broker_record import BrokerRecord

TARGET: Final = "metrics"

WORKER_S: Final = 5.0
"""How long another worker has for its figures; Prometheus gives up after ten seconds by default."""

OPEN_MAX: Final = 16
"""Scrapes by other workers that are under way at once; the oldest is dropped for one more."""


class WorkerMetrics(Protocol):
    """The figures of one worker, as the others ask for them."""

    async def next_part(self, scrape: str, accept: str, first: bool) -> TextPart | None:
        """Return the next part of a scrape, which the caller names; None after the last part."""


class LocalMetrics:
    """The figures of this worker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = make_registry(broker)
        self._open: dict[str, AsyncIterator[TextPart]] = {}

    async def parts(self, accept: str) -> AsyncIterator[TextPart]:
        encode, worker = exposition.choose_encoder(accept)[0], str(self._broker.id)
        tables = await collect_topics(self._broker)
        for part in process_parts(self._registry, worker, encode):
            yield part
        for part in chain.from_iterable(
            table.parts(worker, encode) for table in (*tables.all, *quota_tables(self._broker))
        ):
            yield part
            await asyncio.sleep(0)

    async def next_part(self, scrape: str, accept: str, first: bool) -> TextPart | None:
        if first:
            self._open[scrape] = self.parts(accept)
            while len(self._open) > OPEN_MAX:
                del self._open[next(iter(self._open))]
        if scrape not in self._open:
            raise NotFoundError(f"scrape {scrape} is not under way; begin it again")
        part = await anext(self._open[scrape], None)
        if part is None:
            self._open.pop(scrape, None)
        return part


METRICS: Final = Port(WorkerMetrics)  # type: ignore[type-abstract]


class Scraper:
    """Scrapes all workers of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._local = LocalMetrics(broker)
        self._others: Callable[[BrokerRecord], WorkerMetrics] = broker.links.serve_each(
            TARGET, METRICS, self._local
        )
        self._numbers = count()

    async def scrape(self, accept: str) -> AsyncIterator[bytes]:
        """Yield the exposition in pieces, in the format that the Accept header of a request asks for."""
        encode, content_type = exposition.choose_encoder(accept)
        others = await self._ask_others(accept)
        async for piece in joined(self._local.parts(accept), chain(*filter(None, others.values()))):
            yield piece
        answered = {self._broker.id: 1, **{id_: int(parts is not None) for id_, parts in others.items()}}
        yield _workers_up(answered, encode).removesuffix(b"# EOF\n")
        if content_type.startswith("application/openmetrics-text"):
            yield b"# EOF\n"

    async def _ask_others(self, accept: str) -> Mapping[int, Sequence[TextPart] | None]:
        """Return the parts of each other worker; None for a worker that did not answer."""
        living = self._broker.directory.brokers
        ids = sorted({*living, *range(self._broker.config.workers)} - {self._broker.id})
        found = await asyncio.gather(*(self._ask(living.get(id_), accept) for id_ in ids))
        return dict(zip(ids, found, strict=True))

    async def _ask(self, broker: BrokerRecord | None, accept: str) -> Sequence[TextPart] | None:
        if broker is None:
            return None
        other, scrape = self._others(broker), f"{self._broker.id}-{next(self._numbers)}"
        parts: list[TextPart] = []
        try:
            async with asyncio.timeout(WORKER_S):
                part = await other.next_part(scrape, accept, True)
                while part is not None:
                    parts.append(part)
                    part = await other.next_part(scrape, accept, False)
        except (AnabranchError, TimeoutError):
            return None
        return parts


async def joined(own: AsyncIterator[TextPart], others: Iterable[TextPart]) -> AsyncIterator[bytes]:
    """Yield the text of all parts, with each family in one piece below one header."""
    waiting: dict[bytes, list[bytes]] = {}
    for header, lines in others:
        waiting.setdefault(header, []).append(lines)
    last: bytes | None = None
    async for header, lines in own:
        if header != last:
            for piece in waiting.pop(last or b"", ()):
                yield piece
            yield header
            last = header
        yield lines
    # The rest follows the last family, or belongs to families that only other workers have.
    for piece in waiting.pop(last or b"", ()):
        yield piece
    for header, pieces in waiting.items():
        yield header
        for piece in pieces:
            yield piece


def _workers_up(answered: Mapping[int, int], encode: Encode) -> bytes:
    family = GaugeMetricFamily(
        "anabranch_worker_up", "1 if the figures of the worker are part of this scrape.", labels=["worker"]
    )
    for id_, up in sorted(answered.items()):
        family.add_metric([str(id_)], up)
    return encode(Families([family]))
