"""AckSet made durable: every change is remembered as a step until a commit has taken it.

A step says what became acknowledged, never what the whole set is, so that a commit costs what changed. Steps
played again over a set that has them already leave it as it is. Knows nothing of files.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import Protocol

from anabranch.ledger.format.records import Acked, PartAcked, Reset, Step, UpTo
from anabranch.model.acks import AckSet


class StepSink(Protocol):
    """Who makes the steps of cursors durable."""

    def steps_waiting(self, cursor: DurableCursor) -> None:
        """The cursor has its first step since its steps were taken."""
        ...

    async def flush(self) -> None:
        """Return when every step waiting before the call is durable."""
        ...


class DurableCursor:
    """The cursor of the ledger port over any sink."""

    def __init__(
        self, log: int, name: str, acks: AckSet, properties: Mapping[str, str], sink: StepSink
    ) -> None:
        self.log = log
        self._name = name
        self._acks = acks
        self._properties = dict(properties)
        self._sink = sink
        self._steps: list[Step] = []
        self._acked: list[int] = []
        self._deleted = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def acks(self) -> AckSet:
        return self._acks

    @property
    def properties(self) -> Mapping[str, str]:
        return self._properties

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        given = ordinals if isinstance(ordinals, list) else list(ordinals)
        if not given:
            return
        self._acks.acknowledge(given)
        self._announce()
        self._acked.extend(given)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        self._acks.acknowledge_part(ordinal, remaining, count)
        whole = remaining & ((1 << count) - 1)
        self._add(PartAcked(ordinal, whole.to_bytes((count + 7) // 8, "little"), count))

    def acknowledge_up_to(self, ordinal: int) -> None:
        if ordinal <= self._acks.mark:
            return
        self._acks.acknowledge_up_to(ordinal)
        if not self._acked and self._steps and isinstance(self._steps[-1], UpTo):
            self._steps[-1] = UpTo(ordinal)
        else:
            self._add(UpTo(ordinal))

    def reset(self, ordinal: int) -> None:
        self._acks.reset(ordinal)
        self._announce()
        self._acked.clear()
        self._steps[:] = [Reset(ordinal)]

    async def flush(self) -> None:
        await self._sink.flush()

    def take_steps(self) -> list[Step]:
        """The steps since the last call, oldest first; none once the cursor is deleted."""
        self._close_acked()
        steps, self._steps = self._steps, []
        return [] if self._deleted else steps

    def mark_deleted(self) -> None:
        """Nothing that happens to this cursor is to be kept from here on."""
        self._deleted = True

    def _add(self, step: Step) -> None:
        self._announce()
        self._close_acked()
        self._steps.append(step)

    def _announce(self) -> None:
        if not self._steps and not self._acked:
            self._sink.steps_waiting(self)

    def _close_acked(self) -> None:
        if self._acked:
            self._steps.append(Acked(_encode_ordinals(self._acked)))
            self._acked = []


def play(acks: AckSet, steps: Iterable[Step]) -> None:
    """Do to `acks` what the steps say was done."""
    for step in steps:
        match step:
            case Acked(ordinals):
                acks.acknowledge(_decode_ordinals(ordinals))
            case UpTo(ordinal):
                acks.acknowledge_up_to(ordinal)
            case PartAcked(ordinal, remaining, count):
                acks.acknowledge_part(ordinal, int.from_bytes(remaining, "little"), count)
            case Reset(ordinal):
                acks.reset(ordinal)


def _encode_ordinals(ordinals: list[int]) -> bytes:
    packed = array("Q", ordinals)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _decode_ordinals(data: bytes) -> list[int]:
    packed = array("Q", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
