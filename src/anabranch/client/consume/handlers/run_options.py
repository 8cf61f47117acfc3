"""The arguments and the statistics of `run`, which handles the messages of a consumer concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from anabranch.aio import Backoff
from anabranch.arguments import refuse_unknown
from anabranch.client.decide.consuming.key_lines import KeyLines
from anabranch.client.message import Message
from anabranch.client.options import Seconds, one_of, positive, seconds
from anabranch.errors import InvalidConfigurationError

T = TypeVar("T")

Handler = Callable[[Message[T]], Awaitable[object]]
RunOrder = Literal["key", "none"]

LOOK_AHEAD = 10_000
LOOK_AHEAD_BYTES = 64 * 2**20
RETRY = Backoff(0.5, 60.0)


class StopSignal(Protocol):
    """An `asyncio.Event` or a `threading.Event`."""

    def is_set(self) -> bool: ...


class RunArguments(TypedDict, total=False):
    """More arguments of `run`."""

    timeout: Seconds | None
    """Longest time of one handler. A handler that takes longer is cancelled and has failed; in a blocking
    consumer, whose threads cannot be cancelled, it is reported, and its key waits for it."""
    retry: Backoff
    """Pauses of a key after failures of its first message, unless the handler's exception has an attribute
    `retry_after`, in seconds. By default from 0.5 to 60 s, or the `redelivery` of a queue consumer."""
    look_ahead: int
    """Most messages that the run holds, running or waiting; by default 10,000, and at least `concurrency`.
    A run whose keys are stuck stops to take messages here, until one of the keys moves on."""
    look_ahead_bytes: int
    """Most bytes of stored entries that these messages hold in memory; by default 64 MiB."""
    stop: StopSignal | Seconds | None
    """Ends the run: an event, or the seconds after which it ends."""
    grace: Seconds
    """How long running handlers may take when the run ends, before they are cancelled; by default 30 s."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The checked arguments of one run."""

    concurrency: int
    by_key: bool
    timeout_s: float | None
    retry: Backoff
    look_ahead: int
    look_ahead_bytes: int
    stop: StopSignal | float | None
    grace_s: float


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Numbers of one run of a consumer, since it began or at one moment.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            statistics = client.subscribe_queue("orders", "counted").run(print, stop=0.1)
            assert isinstance(statistics, RunStatistics)
    """

    handled: int
    """Messages whose handlers have finished."""
    failed: int
    """Attempts that raised, ran out of time or were cancelled."""
    timed_out: int
    """Attempts that took longer than the timeout."""
    dead_letters: int
    """Messages that went to the dead letter topic."""
    parked: int
    """Messages that were parked together with their keys."""
    in_flight: int
    """Handlers that run now."""
    waiting: int
    """Messages that the run holds for later."""
    waiting_bytes: int
    """Bytes of the entries of all messages that the run holds."""
    keys_paused: int
    """Keys whose first message waits for its next attempt."""
    keys_ready: int
    """Keys that wait only because `concurrency` handlers run."""


@dataclass(slots=True)
class RunCounts:
    """The events of one run so far, under the names of RunStatistics."""

    handled: int = 0
    failed: int = 0
    timed_out: int = 0
    dead_letters: int = 0
    parked: int = 0

    def statistics(self, lines: KeyLines[Any], waiting_bytes: int) -> RunStatistics:
        return RunStatistics(
            **asdict(self),
            in_flight=lines.running,
            waiting=lines.held - lines.running,
            waiting_bytes=waiting_bytes,
            keys_paused=lines.paused,
            keys_ready=lines.ready,
        )


def checked_run(
    concurrency: int, order: RunOrder | None, default: RunOrder, retry: Backoff, given: RunArguments
) -> RunOptions:
    """Check the arguments of a run on a consumer with these defaults; raises InvalidConfigurationError."""
    refuse_unknown(given, RunArguments)
    if order is not None:
        one_of("order", order, RunOrder)
    stop, timeout = given.get("stop"), given.get("timeout")
    if stop is not None and not hasattr(stop, "is_set"):
        stop = seconds("stop", stop, zero=True)
    if not isinstance(backoff := given.get("retry", retry), Backoff):
        raise InvalidConfigurationError(f"retry must be a Backoff, not {backoff!r}")
    positive("concurrency", concurrency)
    return RunOptions(
        concurrency,
        (order or default) == "key",
        None if timeout is None else seconds("timeout", timeout),
        backoff,
        max(positive("look_ahead", given.get("look_ahead", LOOK_AHEAD)), concurrency),
        positive("look_ahead_bytes", given.get("look_ahead_bytes", LOOK_AHEAD_BYTES)),
        stop,
        seconds("grace", given.get("grace", 30.0), zero=True),
    )


async def stop_given(stop: StopSignal | float | None) -> None:
    """Return when a run is to end."""
    if stop is None:
        await asyncio.Event().wait()
    elif isinstance(stop, asyncio.Event):
        await stop.wait()
    elif isinstance(stop, (int, float)):
        await asyncio.sleep(stop)
    else:
        # An event of another thread cannot wake this loop.
        while not stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(STOP_POLL_S)


STOP_POLL_S = 0.05
"""How often a run looks at an event of another thread."""
