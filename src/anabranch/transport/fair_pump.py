"""The broker's end of a connection: a pump that yields to others and accounts for held bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anabranch.config.broker import BrokerConfig
from anabranch.descriptors import HANDSHAKES
from anabranch.protocol.connection import ServerMachine
from anabranch.transport.arrivals import Arrivals
from anabranch.transport.door import Door
from anabranch.transport.held_bytes import HeldBytes
from anabranch.transport.pump import Pump, PumpHandler
from anabranch.transport.seldom import Seldom
from anabranch.transport.turns import LIGHT_COMMANDS, SLICE_BYTES_FIRST, SLICE_BYTES_MAX, Turns, next_slice

SMALL_PART_BYTES: Final = 4 * 2**10
"""A smaller part of a frame is not counted, because each connection may hold one."""


class SharedLimits:
    """Shared by all connections of a broker: door, limits, turns, held bytes, the buffer of one read."""

    def __init__(self, config: BrokerConfig, make: Callable[[], Pump]) -> None:
        """Set up the limits; `make` makes the pump of each accepted connection."""
        self.door = Door("the binary port", config.connections_max + HANDSHAKES, make)
        self.arrivals = Arrivals(config)
        self.turns = Turns()
        # There must always be room for two frames of the largest size.
        partial_bytes_max = max(config.partial_frames_bytes_max, 2 * config.max_message_bytes)
        self.partial = HeldBytes("incomplete frames", partial_bytes_max)
        self.unsent = HeldBytes("unsent answers", config.unsent_bytes_max)
        self.warnings = Seldom(logging.getLogger(__name__), times=20)
        """For warnings about single connections."""
        self.buffer = memoryview(bytearray(SLICE_BYTES_MAX))


class FairPump(Pump, asyncio.BufferedProtocol):
    """Reads one slice at a time; a peer that has more to say waits for its turn.

    What is not read stays in the kernel, which holds up the peer when its buffer is full.
    """

    def __init__(self, machine: ServerMachine, handler: PumpHandler, limits: SharedLimits) -> None:
        super().__init__(machine, handler)
        self._limits = limits
        self._slice_bytes = SLICE_BYTES_FIRST
        self._holds_part = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._limits.buffer[: self._slice_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        read_all = nbytes < self._slice_bytes
        self.data_received(bytes(self._limits.buffer[:nbytes]))
        self._slice_bytes = next_slice(self._slice_bytes, nbytes, self.handled)
        turns = self._limits.turns
        if not read_all or (self.handled > LIGHT_COMMANDS and turns.busy):
            self.wait_for_turn(True)
            turns.later(self._take_turn)

    def _take_turn(self) -> None:
        self.wait_for_turn(False)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        part = self.machine.partial_bytes
        if part > SMALL_PART_BYTES:
            self._holds_part = True
            self._limits.partial.hold(self, part, anew=self.handled > 0)
        elif self._holds_part:
            self._holds_part = False
            self._limits.partial.hold(self, 0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limits.unsent.hold(self, self.unsent_bytes, anew=True)

    def resume_writing(self) -> None:
        self._limits.unsent.hold(self, 0)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.partial.hold(self, 0)
        self._limits.unsent.hold(self, 0)
        super().connection_lost(exc)
