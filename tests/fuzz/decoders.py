"""Feeds mutated frames to every decoder of the wire; only errors of Anabranch may come out.

`fuzz_decoders` is what one process does; a failure names the seed and the frame that replay it.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.protocol.commands import Command, Delivery, Send, encode
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.outer import read_outer, read_slot
from anabranch.protocol.frames import checksum_ok, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fuzz.making import FrameMaker

ENTRY_BYTES_MAX: Final = 2**20
FRESH_FRAMES: Final = 2_000
"""Well-formed frames that are made at a time; each is mutated `MUTATIONS` times."""
MUTATIONS: Final = 20
MEMORY_GROWTH_MAX: Final = 256 * 2**20

ENTRY_DECODERS: Final[tuple[Callable[[bytes], object], ...]] = (
    checksum_ok,
    metadata_span,
    read_outer,
    read_slot,
    lambda entry: decode_columns(entry, ENTRY_BYTES_MAX),
)


class FuzzError(Exception):
    """A decoder raised an error that is not Anabranch's, or used too much memory."""


def read_entry(entry: bytes) -> None:
    """Decode an entry in every way that the broker and the client do."""
    for decoder in ENTRY_DECODERS:
        try:
            decoder(entry)
        except AnabranchError:
            continue


def read_stream(data: bytes) -> int:
    """Decode bytes as a broker and as a client whose handshake is done; returns the number of commands."""
    count = 0
    for machine, hello in (
        (ServerMachine(now=0.0), encode(pb.CommandConnect(client_version="fuzz", protocol_version=21))),
        (ClientMachine(now=0.0), encode(pb.CommandConnected(server_version="fuzz", protocol_version=21))),
    ):
        machine.receive(hello, 0.0)
        middle = len(data) // 2
        try:
            # The second half arrives later, so the frame is also cut in two.
            found: list[Command] = machine.receive(data[:middle], 0.0) + machine.receive(data[middle:], 0.0)
        except AnabranchError:
            continue
        count += len(found)
        for command in found:
            if isinstance(command, Send):
                read_entry(command.entry)
            elif isinstance(command, Delivery):
                read_entry(command.data)
    return count


def fuzz_decoders(seed: int, frames: int) -> Counter[str]:
    """Decode this many frames; raises FuzzError for the first that does harm."""
    maker = FrameMaker(seed)
    counts: Counter[str] = Counter()
    before = _memory_bytes()
    while counts["frames"] < frames:
        for fresh in [maker.frame() for _ in range(FRESH_FRAMES // MUTATIONS)]:
            for _ in range(MUTATIONS):
                data = maker.mutate(fresh)
                counts["frames"] += 1
                try:
                    counts["commands"] += read_stream(data)
                    read_entry(maker.mutate(fresh[12:]))
                except Exception as error:
                    raise FuzzError(f"seed {seed}: {error!r} for the frame {data.hex()}") from error
        growth = _memory_bytes() - before
        if growth > MEMORY_GROWTH_MAX:
            raise FuzzError(f"seed {seed}: memory grew by {growth} bytes in {counts['frames']} frames")
    return counts


def _memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
