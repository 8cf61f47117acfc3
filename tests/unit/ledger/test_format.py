"""Bytes on disk: damaged, misplaced or torn records are never taken for others."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.errors import CorruptDataError, UnsupportedFormatError
from anabranch.ledger.format.catalog import (
    Bounds,
    Catalog,
    CursorRecord,
    LedgerRecord,
    LogRecord,
    decode_bounds,
    decode_catalog,
    encode_bounds,
    encode_catalog,
)
from anabranch.ledger.format.commits import (
    COMMIT_HEAD_BYTES,
    Acked,
    Contents,
    CursorChanged,
    Group,
    Labelled,
    LogCreated,
    Noted,
    PartAcked,
    PieceRecord,
    Reset,
    UpTo,
    decode_commit,
    decode_commit_head,
    encode_commit,
    find_commit,
    find_commit_tail,
)
from anabranch.ledger.format.index_head import IndexHead, decode_index_head, encode_index_head
from anabranch.ledger.format.records import (
    HEAD_BYTES,
    EntryRecord,
    Rows,
    RowStart,
    checksum,
    decode_record,
    rebuild_rows,
    record_head,
    seed,
)
from tests.harness.storage import flip

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


RECORD_BYTES = HEAD_BYTES + len(DATA)
RECORDS = b"".join(record_head(OWNER, n, 2, 10 + 2 * n, 100 + n, DATA) + DATA for n in range(4))
END = RowStart(4, 4 * RECORD_BYTES, 8, 3)


def rebuilt(data: bytes) -> tuple[list[int], list[int], list[int], list[int]]:
    made, damaged = rebuild_rows(OWNER, data, RowStart(), END, (10, 100))
    return made.ends.tolist(), made.indexes.tolist(), made.times.tolist(), damaged


ENDS = [RECORD_BYTES, 2 * RECORD_BYTES, 3 * RECORD_BYTES, 4 * RECORD_BYTES]


def test_rows_can_be_rebuilt_from_the_records() -> None:
    assert rebuilt(RECORDS) == (ENDS, [2, 4, 6, 8], [0, 1, 2, 3], [])


def test_rows_of_later_records_begin_at_the_end_of_the_earlier_ones() -> None:
    start = RowStart(2, 2 * RECORD_BYTES, 4, 1)
    made, damaged = rebuild_rows(OWNER, RECORDS[2 * RECORD_BYTES :], start, END, (10, 100))
    assert (made.ends.tolist(), made.indexes.tolist(), made.times.tolist()) == (ENDS[2:], [6, 8], [2, 3])
    assert damaged == []


def test_a_damaged_record_costs_no_row_of_another_entry() -> None:
    for at in range(RECORD_BYTES, 2 * RECORD_BYTES):
        ends, indexes, times, damaged = rebuilt(flip(RECORDS, at, at % 8))
        assert (ends, indexes, damaged) == (ENDS, [2, 4, 6, 8], [1]), at
        assert times == [0, 0, 2, 3]


def test_missing_records_are_counted_as_damaged() -> None:
    assert rebuilt(RECORDS[: 2 * RECORD_BYTES + 5]) == (
        [*ENDS[:2], 2 * RECORD_BYTES, 4 * RECORD_BYTES],
        [2, 4, 5, 8],
        [0, 1, 1, 3],
        [2, 3],
    )
    assert rebuilt(b"")[3] == [0, 1, 2, 3]


CONTENTS = Contents(
    [
        LogCreated(1, "persistent://public/default/x"),
        CursorChanged(
            1,
            "s",
            [
                UpTo(3),
                Acked(b"\x05" + bytes(7)),
                PartAcked(9, b"\x03", 4),
                Reset(2),
                Noted(b"n"),
                Labelled({"k": "v"}),
            ],
        ),
    ],
    [Group(1, 2, RowStart(), 1, 42, 9, 0, 0, 1000, 1000, {"producer": 7})],
)
JOURNAL = seed(77, 1)


def commit(number: int = 5, offset: int = 0) -> bytes:
    return b"".join(encode_commit(JOURNAL, number, offset, CONTENTS, [b"rows", b"records"]))


def test_a_commit_comes_back() -> None:
    data = commit()
    head = decode_commit_head(JOURNAL, data, 0, 0)
    assert head is not None
    assert (head.number, head.end) == (5, len(data))
    found = decode_commit(JOURNAL, head, data)
    assert found is not None
    assert (found.contents, found.payload, found.damage) == (CONTENTS, b"rowsrecords", ())


def test_any_flipped_bit_of_a_commit_is_noticed_and_costs_one_part_of_it() -> None:
    parts = set()
    for bad in flips(commit()):
        head = decode_commit_head(JOURNAL, bad, 0, 0) or find_commit_tail(JOURNAL, bad, 0)
        assert head is not None
        found = decode_commit(JOURNAL, head, bad)
        assert found is not None
        assert found.contents == CONTENTS
        (part,) = found.damage
        parts.add(part)
        assert (found.payload == b"rowsrecords") == (part != "rows and records")
    assert parts == {"head", "contents", "contents copy", "tail", "rows and records"}


def test_a_commit_whose_contents_are_damaged_twice_is_lost() -> None:
    head = decode_commit_head(JOURNAL, commit(), 0, 0)
    assert head is not None
    once = flip(commit(), COMMIT_HEAD_BYTES)
    twice = flip(once, len(once) - COMMIT_HEAD_BYTES - 1)
    assert decode_commit(JOURNAL, head, once) is not None
    assert decode_commit(JOURNAL, head, twice) is None


def test_a_commit_counts_only_in_its_own_journal_at_its_own_place() -> None:
    assert decode_commit_head(seed(77, 2), commit(), 0, 0) is None
    assert decode_commit_head(seed(78, 1), commit(), 0, 0) is None
    assert decode_commit_head(JOURNAL, commit(), 0, 10) is None


def test_a_later_commit_is_found_behind_garbage() -> None:
    garbage = b"aBc\xa5" * 20 + b"x"
    later = find_commit(JOURNAL, garbage + commit(6, 1000 + len(garbage)), 0, 1000)
    assert later is not None
    assert (later.number, later.offset) == (6, 1000 + len(garbage))
    assert find_commit(JOURNAL, garbage + commit(6, 1000), 0, 1000) is None
    assert find_commit(JOURNAL, garbage + commit(6, 1000 + len(garbage))[:20], 0, 1000) is None


def test_a_catalog_comes_back_and_any_flipped_bit_is_noticed() -> None:
    log = LogRecord(
        1,
        "n",
        True,
        2,
        3,
        4,
        5,
        99,
        6,
        [LedgerRecord(1, 2, 3, 4, 5, 6, 7, 8, 9)],
        [CursorRecord("s", b"a", {}, b"note")],
        {},
        [PieceRecord(0, 9, {"p": 1})],
    )
    catalog = Catalog(1, 9, 2, 3, 4, 5, [log])
    data = encode_catalog(catalog)
    assert decode_catalog(data) == catalog
    for bad in [*flips(data), b"", data[:-1], data + b"x"]:
        with pytest.raises(CorruptDataError):
            decode_catalog(bad)


def test_a_catalog_without_notes_is_read() -> None:
    without_note = msgspec.msgpack.encode(["s", b"a", {"k": "v"}])
    found = msgspec.msgpack.decode(without_note, type=CursorRecord)
    assert found == CursorRecord("s", b"a", {"k": "v"}, b"")


def test_bounds_come_back_and_any_flipped_bit_is_noticed() -> None:
    bounds = Bounds(1, 2, 3, 4)
    data = encode_bounds(bounds)
    assert decode_bounds(data) == bounds
    for bad in [*flips(data), b"", data[:-1], data + b"x", encode_catalog(Catalog(1, 2, 3, 4, 5, 6, []))]:
        with pytest.raises(CorruptDataError):
            decode_bounds(bad)


def test_another_format_is_refused_and_is_not_taken_for_damage() -> None:
    newer = b"anabranch catalog 3\n"
    body = b"fields of the future"
    with pytest.raises(UnsupportedFormatError, match=r"format 3.*start the newer version"):
        decode_catalog(newer + checksum(newer + body).to_bytes(4, "little") + body)
    with pytest.raises(UnsupportedFormatError, match=r"format 1.*start the older version"):
        decode_catalog(b"anabranch catalog 1\n" + checksum(body).to_bytes(4, "little") + body)


def test_an_index_head_comes_back_and_any_flipped_bit_is_noticed() -> None:
    head = IndexHead(1, "persistent://public/default/x", 2, 3, 4, 5)
    data = encode_index_head(head)
    assert decode_index_head(data + b"rows") == head
    for bad in [*flips(data), b"", data[:-1]]:
        assert decode_index_head(bad) is None
