"""Bytes on disk: damaged, misplaced or torn records are never taken for others."""

from __future__ import annotations

import pytest

from anabranch.errors import CorruptDataError
from anabranch.ledger.format.catalog import (
    Catalog,
    CursorRecord,
    LedgerRecord,
    LogRecord,
    decode_catalog,
    encode_catalog,
)
from anabranch.ledger.format.commits import (
    COMMIT_HEAD_BYTES,
    Acked,
    Contents,
    CursorChanged,
    Group,
    LogCreated,
    PartAcked,
    PieceRecord,
    Reset,
    UpTo,
    commit_follows,
    decode_commit_body,
    decode_commit_head,
    encode_commit,
    is_whole,
)
from anabranch.ledger.format.records import (
    HEAD_BYTES,
    EntryRecord,
    Rows,
    decode_record,
    record_head,
    rows_from_records,
    seed,
)

OWNER = seed(3, 9)
DATA = b"some entry"


def stored(entry: int = 4, owner: int = OWNER) -> bytes:
    return record_head(owner, entry, 2, 70, -5, DATA) + DATA


def flips(data: bytes) -> list[bytes]:
    """Every way to turn one bit over."""
    result = []
    for at in range(len(data)):
        for bit in range(8):
            result.append(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
    return result


def test_a_record_says_what_was_stored() -> None:
    assert decode_record(OWNER, 4, stored()) == EntryRecord(4, 2, 70, -5, DATA)


def test_any_flipped_bit_of_a_record_is_noticed() -> None:
    assert [bad for bad in flips(stored()) if decode_record(OWNER, 4, bad) is not None] == []


def test_a_record_in_the_wrong_place_is_refused() -> None:
    assert decode_record(OWNER, 5, stored(4)) is None
    assert decode_record(seed(3, 10), 4, stored()) is None
    assert decode_record(seed(4, 9), 4, stored()) is None


def test_a_record_cut_short_is_refused() -> None:
    assert [end for end in range(len(stored())) if decode_record(OWNER, 4, stored()[:end]) is not None] == []


def rows(count: int) -> Rows:
    made = Rows()
    for at in range(count):
        made.ends.append((at + 1) * 50)
        made.indexes.append((at + 1) * 3)
        made.times.append(at * 7)
    return made


def test_rows_are_little_endian_triples() -> None:
    assert rows(2).encode() == b"\x32\0\0\0\x03\0\0\0\0\0\0\0\x64\0\0\0\x06\0\0\0\x07\0\0\0"


def test_rows_come_back() -> None:
    again = Rows.decode(rows(5).encode())
    assert (again.ends, again.indexes, again.times) == (rows(5).ends, rows(5).indexes, rows(5).times)


def test_rows_can_be_rebuilt_from_the_records() -> None:
    data = b"".join(record_head(OWNER, n, 2, 10 + 2 * n, 100 + n, DATA) + DATA for n in range(3))
    made = rows_from_records(data, 3, 10, 100)
    assert made is not None
    size = HEAD_BYTES + len(DATA)
    assert (made.ends.tolist(), made.indexes.tolist(), made.times.tolist()) == (
        [size, 2 * size, 3 * size],
        [2, 4, 6],
        [0, 1, 2],
    )


def test_rows_are_not_rebuilt_from_a_broken_chain() -> None:
    data = b"".join(record_head(OWNER, n, 1, n, 0, DATA) + DATA for n in range(3))
    assert rows_from_records(data[:-1], 3, 0, 0) is None
    assert rows_from_records(data + b"x", 3, 0, 0) is None
    assert rows_from_records(data, 4, 0, 0) is None
    assert rows_from_records(data[HEAD_BYTES + len(DATA) :], 2, 0, 0) is None


CONTENTS = Contents(
    [
        LogCreated(1, "persistent://public/default/x"),
        CursorChanged(1, "s", [UpTo(3), Acked(b"\x05" + bytes(7)), PartAcked(9, b"\x03", 4), Reset(2)]),
    ],
    [Group(1, 2, 0, 1, 42, 0, 0, 1000, 1000, {"producer": 7})],
)
JOURNAL = seed(77, 1)


def commit(number: int = 5, offset: int = 0) -> bytes:
    return b"".join(encode_commit(JOURNAL, number, offset, CONTENTS, [b"rows", b"records"]))


def test_a_commit_comes_back() -> None:
    data = commit()
    head = decode_commit_head(JOURNAL, data, 0, 0)
    assert head is not None
    assert (head.number, head.end) == (5, len(data))
    body = data[COMMIT_HEAD_BYTES:]
    assert is_whole(head, body)
    contents, payload = decode_commit_body(head, body)
    assert contents == CONTENTS
    assert bytes(payload) == b"rowsrecords"


def test_any_flipped_bit_of_a_commit_is_noticed() -> None:
    whole = []
    for bad in flips(commit()):
        head = decode_commit_head(JOURNAL, bad, 0, 0)
        if head is not None and is_whole(head, bad[COMMIT_HEAD_BYTES:]):
            whole.append(bad)
    assert whole == []


def test_a_commit_counts_only_in_its_own_journal_at_its_own_place() -> None:
    assert decode_commit_head(seed(77, 2), commit(), 0, 0) is None
    assert decode_commit_head(seed(78, 1), commit(), 0, 0) is None
    assert decode_commit_head(JOURNAL, commit(), 0, 10) is None


def test_a_later_commit_is_found_behind_garbage() -> None:
    garbage = b"aBc\xa5" * 20 + b"x"
    assert commit_follows(JOURNAL, garbage + commit(6, 1000 + len(garbage)), 0, 1000)
    assert not commit_follows(JOURNAL, garbage + commit(6, 1000), 0, 1000)
    assert not commit_follows(JOURNAL, garbage + commit(6, 1000 + len(garbage))[:20], 0, 1000)


def test_a_catalog_comes_back_and_any_flipped_bit_is_noticed() -> None:
    log = LogRecord(
        1,
        "n",
        True,
        2,
        3,
        4,
        5,
        6,
        [LedgerRecord(1, 2, 3, 4, 5, 6, 7, 8, 9)],
        [CursorRecord("s", b"a", {})],
        {},
        [PieceRecord(0, 9, {"p": 1})],
    )
    catalog = Catalog(1, 2, 3, 4, 5, [log])
    data = encode_catalog(catalog)
    assert decode_catalog(data) == catalog
    for bad in [*flips(data), b"", data[:-1], data + b"x"]:
        with pytest.raises(CorruptDataError):
            decode_catalog(bad)
