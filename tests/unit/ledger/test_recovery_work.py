"""The work of a recovery grows with the size of the store, and not with its square."""

from __future__ import annotations

from typing import Any

from anabranch.ledger.format.records import HEAD_BYTES, RowStart, rebuild_rows, record_head, seed
from anabranch.ledger.format.salvage import DamagedEntry
from anabranch.ledger.recovery.ledger_recovery import LedgerRecovery
from tests.fakes.disk import DictDisk

LOG, LEDGER = 3, 9


def record(ledger: int, number: int, data: bytes) -> bytes:
    return record_head(seed(LOG, ledger), number, 1, number, 100, data) + data


class CopyCounter(bytes):
    """Bytes that count how many of them were copied."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, bytes):
            self.copied += len(found)
        return found


def test_a_search_for_the_next_record_does_not_copy_the_rest_at_each_place_that_looks_like_one() -> None:
    # Each eight bytes look like the length and the number of the next record.
    lookalikes = (2**31).to_bytes(4, "little") + (1).to_bytes(4, "little")
    first = bytearray(record(LEDGER, 0, lookalikes * 2_000))
    first[0] ^= 1
    data = CopyCounter(bytes(first) + record(LEDGER, 1, b"whole"))
    rows, damaged = rebuild_rows(seed(LOG, LEDGER), data, RowStart(), RowStart(2, len(data), 2, 0), (0, 100))
    assert (rows.ends.tolist(), damaged) == ([len(first), len(data)], [0])
    assert data.copied <= 2 * len(data)


class CountedName(str):
    """The name of a file that counts how often it was looked at."""

    __slots__ = ()
    looks = 0

    def startswith(self, *args: Any) -> bool:
        CountedName.looks += 1
        return super().startswith(*args)


async def test_copies_of_damaged_entries_are_found_with_one_look_at_each_file() -> None:
    ledgers = range(1, 101)
    disk = DictDisk({CountedName(f"ledgers/a/{id_:08}.data"): record(id_, 0, b"entry") for id_ in ledgers})
    length = HEAD_BYTES + len(b"entry")
    damaged = [DamagedEntry(LOG, id_, 0, id_, (0, length), 0) for id_ in [*ledgers, 200]]
    before = CountedName.looks
    copies = await LedgerRecovery(disk, await disk.sizes()).copies(damaged)
    assert copies == {(id_, 0): record(id_, 0, b"entry") for id_ in ledgers}
    assert CountedName.looks - before <= len(ledgers)
