"""The messages of one entry by columns, and how the header of a message is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Final

from anabranch.errors import CorruptDataError
from anabranch.protocol.pb import pulsar_pb2 as pb

KEY_TAG: Final = 0x12
read_head = Struct(">IBB").unpack_from
parse_header = pb.SingleMessageMetadata.FromString


@dataclass
class Columns:
    """The messages of one entry, column by column; an optional column is None when no message has it.

    Keys and sequence ids are decoded on first use, because many readers want only the values.
    """

    count: int
    values: list[bytes | None]
    """None for a message whose value is null."""
    batch_indexes: Sequence[int]
    """Place of each message in its batch; -1 when the entry is not a batch."""
    event_times: list[int] | None
    """Milliseconds, 0 for a message without one."""
    properties: list[dict[str, str]] | None
    ordering_keys: list[bytes | None] | None
    publish_time_ms: int
    producer_name: str
    batch_size: int
    """Messages in the stored batch, including compacted ones; 0 when the entry is not a batch."""
    data: bytes = b""
    starts: Sequence[int] = ()
    """Offset in `data` of each message."""
    numbered_from: int | None = None
    """The sequence id of message 0 if a message has none of its own; messages are numbered in order."""

    @cached_property
    def keys(self) -> list[bytes | None]:
        data = self.data
        return [
            data[at + 6 : at + 6 + data[at + 5]] if data[at + 4] == KEY_TAG else None for at in self.starts
        ]

    @cached_property
    def sequence_ids(self) -> list[int]:
        data, first = self.data, self.numbered_from
        if first is not None:
            headers = (parse_header(header_bytes(data, *header_span(data, at))) for at in self.starts)
            return [sequence_id_of(header, first + index) for index, header in enumerate(headers)]
        return [last_varint(data, at + 4 + read_head(data, at)[0]) for at in self.starts]


def sequence_id_of(header: pb.SingleMessageMetadata, implied: int) -> int:
    """Return the sequence id in a header, or the implied one."""
    return header.sequence_id if header.HasField("sequence_id") else implied


def header_span(data: bytes, position: int) -> tuple[int, int]:
    """Return the start and end of the header of the message at a position."""
    return position + 4, position + 4 + read_head(data, position)[0]


def header_bytes(data: bytes, start: int, end: int) -> bytes:
    """Return the bytes of a header; raises CorruptDataError for one that is longer than the data."""
    if end > len(data):
        raise CorruptDataError(f"a header in a batch claims {end - start} bytes of {len(data) - start}")
    return data[start:end]


def last_varint(data: bytes, end: int) -> int:
    """Return the varint of at most nine bytes that ends before `end`.

    The byte before it ends another field.
    """
    number = data[end - 1]
    for at in range(end - 2, end - 10, -1):
        if data[at] < 0x80:
            break
        number = number << 7 | data[at] & 0x7F
    return number
