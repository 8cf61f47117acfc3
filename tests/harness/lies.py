"""Lying entries in the log of a segment, as a broker without checks would have stored them."""

from __future__ import annotations

import asyncio

from anabranch.ledger.storage import Entry
from simulation.world.lies import Lie
from tests.harness.cluster import Brokers
from tests.harness.segments import WHOLE


async def store(brokers: Brokers, lie: Lie | bytes, *, count: int = 1, segment: str = WHOLE) -> Entry:
    """Append an entry to a segment that exists; the log counts `count` messages."""
    log = next(found for storage in brokers.storages.values() if (found := storage.get(segment)) is not None)
    stored: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()

    def done(entry: Entry | None, error: BaseException | None) -> None:
        assert entry is not None, error
        stored.set_result(entry)

    log.append(lie.entry() if isinstance(lie, Lie) else lie, count, 1, done)
    return await stored
