"""A process that writes to segment storage until it is killed, and prints each confirmation.

One line on standard output for each confirmed append (`put LOG ORDINAL LEDGER ENTRY INDEX`) and for each
confirmed acknowledgement (`ack LOG ORDINAL`); written at once, so a kill loses no line.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from anabranch.clock import SystemClock
from anabranch.ledger.disks.os_disk import OsDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry, SegmentLog

LOGS = tuple(
    f"segment://public/default/kill/{start:04x}-{start + 0x3FFF:04x}-{start}" for start in (0, 0x4000)
)


def payload(log: str, ordinal: int) -> bytes:
    return f"{log}#{ordinal}|".encode() * (1 + ordinal % 7)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def write(log: SegmentLog, rng: random.Random) -> None:
    ordinal = log.extent.next_ordinal
    cursor = log.cursors.open("reader", 0)

    def done(place: Entry | None, error: BaseException | None) -> None:
        assert place is not None, error
        say("put", log.name, place.ordinal, place.position.ledger, place.position.entry, place.index)

    while True:
        for _ in range(rng.randrange(1, 50)):
            log.append(payload(log.name, ordinal), 1 + ordinal % 3, 1000 + ordinal, done, "writer", ordinal)
            ordinal += 1
        if rng.random() < 0.3 and log.extent.next_ordinal:
            acked = rng.randrange(log.extent.next_ordinal)
            cursor.acknowledge([acked])
            await cursor.flush()
            say("ack", log.name, acked)
        elif rng.random() < 0.3:
            await log.flush()
        else:
            await asyncio.sleep(0)


async def main(root: str, seed: int) -> None:
    rng = random.Random(seed)
    storage = FileStorage(
        OsDisk(root),
        clock=SystemClock(),
        limits=StorageLimits(
            cache_bytes=100_000, journal_bytes_max=300_000, ledger_bytes_max=100_000, behind_bytes=20_000
        ),
    )
    await storage.open()
    async with asyncio.TaskGroup() as tasks:
        for name in LOGS:
            tasks.create_task(write(await storage.create(name), rng))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
