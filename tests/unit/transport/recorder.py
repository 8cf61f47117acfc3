"""A handler of a pump that keeps its events."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.protocol.commands import Command
from anabranch.transport.pump import Pump


class PumpRecorder:
    """A handler that records its events."""

    def __init__(self, reply: Callable[[Pump, list[Command]], None] | None = None) -> None:
        self.log: list[str] = []
        self.got: list[Command] = []
        self.pump: Pump | None = None
        self.error: Exception | None = None
        self._reply = reply

    def connected(self, pump: Pump) -> None:
        self.pump = pump
        self.log.append("connected")

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        self.got += commands
        self.log.append("commands")
        if self._reply is not None:
            self._reply(pump, commands)

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self.error = error
        self.log.append("closed")
