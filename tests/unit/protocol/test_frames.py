from __future__ import annotations

import time
import tracemalloc

import pytest

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.frames import (
    FrameCutter,
    build_entry,
    checksum_ok,
    metadata_span,
)

PING = bytes.fromhex("00000009 00000005 0812920100")
SEND = bytes.fromhex(
    "00000027 00000008 0806320408011000 0e01 cf85822f 0000000c 0a017010001880d095ffbc31 68656c6c6f"
)
ENTRY = SEND[16:]
STAMP = bytes.fromhex("0e02 00000009 0881d095ffbc311029")


def test_a_command_without_entry_has_no_body() -> None:
    assert FrameCutter().feed(PING) == [(bytes.fromhex("0812920100"), None)]


def test_a_command_with_entry_is_cut_after_the_command() -> None:
    assert FrameCutter().feed(SEND) == [(bytes.fromhex("0806320408011000"), ENTRY)]


def test_bytes_of_an_unfinished_frame_wait_for_the_rest() -> None:
    cutter = FrameCutter()
    assert cutter.feed(PING + SEND[:3]) == [(bytes.fromhex("0812920100"), None)]
    assert cutter.feed(SEND[3:20]) == []
    frames = cutter.feed(SEND[20:] + PING)
    assert [command.hex() for command, _ in frames] == ["0806320408011000", "0812920100"]


def test_an_empty_chunk_changes_nothing() -> None:
    cutter = FrameCutter()
    assert cutter.feed(b"") == []
    cutter.feed(SEND[:9])
    assert cutter.feed(b"") == []
    assert len(cutter.feed(SEND[9:])) == 1


@pytest.mark.parametrize("chunk", [8, 5])
def test_a_frame_above_the_limit_is_refused_from_its_size_alone(chunk: int) -> None:
    cutter = FrameCutter(1000)
    head = (997).to_bytes(4, "big") + (5).to_bytes(4, "big")
    last = 8 - chunk
    assert cutter.feed(head[:last]) == []
    with pytest.raises(RemoteProtocolError, match="1001 bytes; the limit is 1000"):
        cutter.feed(head[last:])


def test_the_answer_of_a_web_server_is_called_by_its_name() -> None:
    with pytest.raises(RemoteProtocolError, match="the peer speaks HTTP"):
        FrameCutter().feed(b"HTTP/1.1 400 Bad Request")


def test_the_limit_counts_the_size_field() -> None:
    cutter = FrameCutter(len(SEND))
    assert len(cutter.feed(SEND)) == 1
    cutter.frame_bytes_max = len(SEND) - 1
    with pytest.raises(RemoteProtocolError):
        cutter.feed(SEND)


@pytest.mark.parametrize("total", [0, 3, 4, 8])
def test_a_command_larger_than_its_frame_is_refused(total: int) -> None:
    with pytest.raises(RemoteProtocolError, match="claims a command of 5 bytes"):
        FrameCutter().feed(total.to_bytes(4, "big") + (5).to_bytes(4, "big") + b"12345")


def test_a_claimed_length_reserves_no_memory() -> None:
    cutter = FrameCutter(2**30)
    tracemalloc.start()
    try:
        cutter.feed((2**30 - 4).to_bytes(4, "big") + (5).to_bytes(4, "big") + b"x" * 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_a_large_frame_in_small_chunks_costs_linear_time(chunk: int) -> None:
    def seconds(payload: int) -> float:
        frame = (payload + 8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"c" * 4 + b"p" * payload
        chunks = [frame[start : start + chunk] for start in range(0, len(frame), chunk)]
        cutter = FrameCutter()
        started = time.process_time()
        frames = [frame for piece in chunks for frame in cutter.feed(piece)]
        taken = time.process_time() - started
        assert frames == [(b"cccc", b"p" * payload)]
        return taken

    # Quadratic copying would make the larger one 64 times as slow, and take minutes in single bytes.
    largest = 5 * 2**20 if chunk > 1 else 2**19
    assert seconds(largest) < 40 * seconds(largest // 8) + 0.05


def test_a_matching_checksum_is_accepted_with_and_without_the_brokers_prefix() -> None:
    assert checksum_ok(ENTRY)
    assert checksum_ok(STAMP + ENTRY)


def test_a_changed_byte_is_noticed() -> None:
    for place in range(6, len(ENTRY)):
        broken = bytearray(ENTRY)
        broken[place] ^= 1
        assert not checksum_ok(bytes(broken))


def test_an_entry_without_checksum_is_not_judged() -> None:
    assert checksum_ok(ENTRY[6:])
    assert checksum_ok(STAMP + ENTRY[6:])
    assert checksum_ok(b"")


def test_a_cut_off_checksum_is_wrong() -> None:
    assert not checksum_ok(ENTRY[:4])


@pytest.mark.parametrize("entry", [ENTRY, ENTRY[6:], STAMP + ENTRY, STAMP + ENTRY[6:]])
def test_metadata_and_payload_are_found_behind_any_prefix(entry: bytes) -> None:
    start, end = metadata_span(entry)
    assert entry[start:end] == bytes.fromhex("0a017010001880d095ffbc31")
    assert entry[end:] == b"hello"


@pytest.mark.parametrize(
    "entry",
    [b"", b"\x0e", b"\x0e\x01", ENTRY[:9], ENTRY[:15], STAMP[:4], STAMP[:8], STAMP, b"\x00\x00\x00\x01"],
)
def test_an_entry_that_breaks_off_is_refused(entry: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        metadata_span(entry)


def test_an_entry_is_built_as_on_the_wire() -> None:
    start, end = metadata_span(ENTRY)
    assert build_entry(ENTRY[start:end], ENTRY[end:]) == ENTRY
