"""Which producers may share a log: the step that lets a producer in by its access mode. Pure."""

from __future__ import annotations

from typing import Literal

from anabranch.errors import ProducerBusyError, ProducerFencedError
from anabranch.protocol.pb import pulsar_pb2 as pb

ProducerStep = Literal["join", "own", "wait", "fence"]


def next_step(
    mode: int, *, producers: int, exclusive: bool, waiting: int, foreign: bool = False
) -> ProducerStep:
    """The step that lets a producer with this access mode in; ProducerBusyError or ProducerFencedError.

    `foreign` says that producers of other roles are connected. A role fences only its own producers; those of
    other roles that wait go on waiting.
    """
    alone = not producers and not waiting
    if mode == pb.Shared:
        if exclusive or waiting:
            raise ProducerBusyError("an exclusive producer is connected or waits")
        return "join"
    if mode == pb.Exclusive:
        if not alone:
            raise ProducerFencedError("other producers are connected")
        return "own"
    if mode == pb.WaitForExclusive:
        return "own" if alone else "wait"
    if foreign:
        raise ProducerFencedError("producers of another role are connected, which this role may not fence")
    return "own" if alone else "fence"
