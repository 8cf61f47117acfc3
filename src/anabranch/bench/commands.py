"""`anabranch bench publish`, `consume` and `latency`: their options, and the checks of them."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from anabranch import AsyncClient, Batching
from anabranch.bench.consume import BenchReading, ConsumerKind, consume
from anabranch.bench.display import Display, summary_data, summary_lines
from anabranch.bench.latency import LatencyRun, RoundTrip
from anabranch.bench.publish import BenchSending, publish
from anabranch.bench.run import BenchRun, Ending
from anabranch.bench.workload import MARKED_BYTES, KeyDistribution, SizeRange, Workload
from anabranch.cli.answers import UsageError, at_least_1, tell
from anabranch.cli.options import SERVICE, AsJson, ServiceOptions, Topic, command_group
from anabranch.cli.role import role_of
from anabranch.client.options import CompressionName, parse_topic
from anabranch.errors import InvalidConfigurationError, counted

EXIT_FAILED = 1
LATENCY_RATE = 1000.0
LATENCY_COUNT = 10_000

ABOUT = """\
Measure publishing, consuming and end-to-end latency of any broker.

The address and the credentials are those of the other commands; `persistent://` topics of Apache Pulsar work
too. A command is one process, so it uses one core: start several to load a larger broker. Ctrl-C ends a run
early, and it still shows its figures and cleans up.
"""

EXAMPLES = """\
examples:
  anabranch bench publish orders --count 1000000 --size 50-500
  anabranch bench publish orders --rate 5000 --duration 60 --key-distribution zipf
  anabranch bench consume orders --from earliest --timeout 5
  anabranch bench latency orders --rate 2000 --consumers 2 --json
"""

app = command_group("bench", ABOUT, help_epilogue=EXAMPLES)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The end of a run, and its output."""

    count: Annotated[int | None, Parameter(metavar="N", help="end after this many messages")] = None
    duration: Annotated[float | None, Parameter(metavar="S", help="end after this many seconds")] = None
    interval: Annotated[
        float, Parameter(metavar="S", help="seconds between two reports on standard error (1)")
    ] = 1.0
    quiet: Annotated[bool, Parameter(help="no reports, the summary alone")] = False
    as_json: AsJson = False

    def ending(self, count: int | None = None) -> Ending:
        """Check the options; `count` is the number of messages if neither option is given."""
        at_least_1(count=self.count)
        _positive(duration=self.duration, interval=self.interval)
        if self.count is None and self.duration is None:
            return Ending(count, None)
        return Ending(self.count, self.duration)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MessageWords:
    """The messages to send, and how."""

    size: Annotated[
        str, Parameter(metavar="BYTES", help="size of each value, or two for random sizes: 50-2000 (100)")
    ] = "100"
    keys: Annotated[
        int, Parameter(metavar="N", help="number of different keys; 0 sends without keys (10000)")
    ] = 10_000
    key_distribution: Annotated[
        KeyDistribution,
        Parameter(help="uniform; zipf: few keys have most of the messages; round-robin: in turn (uniform)"),
    ] = "uniform"
    producers: Annotated[int, Parameter(metavar="N", help="producers of this process (1)")] = 1
    rate: Annotated[
        float | None, Parameter(metavar="N", help="messages a second of all producers (as fast as possible)")
    ] = None
    in_flight: Annotated[
        int, Parameter(metavar="N", help="messages of a producer that may wait to be stored (10000)")
    ] = 10_000
    compression: Annotated[CompressionName | None, Parameter(help="compression of batches (none)")] = None
    no_batching: Annotated[bool, Parameter(help="store each message as an entry of its own")] = False
    batch_delay: Annotated[
        float | None, Parameter(metavar="S", help="longest wait for a batch to fill (0.001)")
    ] = None
    batch_messages: Annotated[int | None, Parameter(metavar="N", help="most messages of a batch (1000)")] = (
        None
    )
    batch_bytes: Annotated[int | None, Parameter(metavar="N", help="most bytes of a batch (131072)")] = None

    def workload(self, least: int = 0) -> Workload:
        """Check the options of the messages; their values need `least` bytes."""
        try:
            sizes = SizeRange.parse(self.size)
        except InvalidConfigurationError as error:
            raise UsageError(str(error)) from None
        if sizes.least < least:
            raise UsageError(f"--size is {self.size}; a value needs {least} bytes, for its time of sending")
        if self.keys < 0:
            raise UsageError(f"--keys is {self.keys}; it takes a number of at least 0")
        if self.keys == 0 and self.key_distribution != "uniform":
            raise UsageError(f"--key-distribution {self.key_distribution} needs keys; --keys is 0")
        return Workload(sizes, self.keys, self.key_distribution)

    def sending(self, bulk: int = 1, rate: float | None = None) -> BenchSending:
        """Check the options of the producers; `rate` is the rate if none is given."""
        at_least_1(producers=self.producers, in_flight=self.in_flight, bulk=bulk)
        _positive(rate=self.rate)
        return BenchSending(
            self.producers, self.rate or rate, self.in_flight, bulk, self._batching(), self.compression
        )

    def _batching(self) -> Batching | bool:
        given = {
            "max_delay": self.batch_delay,
            "max_messages": self.batch_messages,
            "max_bytes": self.batch_bytes,
        }
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.no_batching and chosen:
            raise UsageError("--no-batching contradicts the limits of batches")
        at_least_1(batch_messages=self.batch_messages, batch_bytes=self.batch_bytes)
        if self.batch_delay is not None and not self.batch_delay >= 0:
            raise UsageError(f"--batch-delay is {self.batch_delay:g}; it takes a number of at least 0")
        return Batching(**chosen) if not self.no_batching else False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReaderWords:
    """The consumers of a run."""

    consumers: Annotated[int, Parameter(metavar="N", help="consumers of this process (1)")] = 1
    kind: Annotated[
        ConsumerKind,
        Parameter(
            name="--type",
            help="stream: in key order, cumulative acknowledgements; queue: in parallel, single ones; "
            "key-ordered: a queue in key order; checkpoint: without a subscription (stream)",
        ),
    ] = "stream"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SubscriptionWords:
    """The first message to read, and the end of reading."""

    start: Annotated[
        Literal["earliest", "latest"], Parameter(name="--from", help="where to begin (latest)")
    ] = "latest"
    subscription: Annotated[
        str | None,
        Parameter(metavar="NAME", help="read this subscription and keep it (a new one, deleted at the end)"),
    ] = None
    timeout: Annotated[
        float | None, Parameter(metavar="S", help="end when no message arrives for this many seconds")
    ] = None


RUN: Final = RunSettings()
MESSAGES: Final = MessageWords()
READERS: Final = ReaderWords()
SUBSCRIPTION: Final = SubscriptionWords()

Work = Callable[[BenchRun, AsyncClient], Awaitable[None]]


@app.command(name="publish")
def bench_publish(
    topic: Topic,
    /,
    *,
    messages: MessageWords = MESSAGES,
    bulk: Annotated[
        int, Parameter(metavar="N", help="messages of one call: costs less, times them as one (1)")
    ] = 1,
    how: RunSettings = RUN,
    at: ServiceOptions = SERVICE,
) -> int:
    """Publish random messages, and show how many are stored in a second and how long each takes.

    Without --count and --duration the run lasts until Ctrl-C. With --rate, times count from the moment a
    message was due, so that a stall shows in all the messages it delayed.
    """
    name, sending, workload = str(parse_topic(topic)), messages.sending(bulk), messages.workload()
    bench = BenchCommand("publish", name, how, at)
    run = bench.run(lambda run, client: publish(run, client, name, sending, workload), how.ending())
    return bench.tell(run, summary_data(run.stored), stored_lines(name, run))


@app.command(name="consume")
def bench_consume(
    topic: Topic,
    /,
    *,
    readers: ReaderWords = READERS,
    source: SubscriptionWords = SUBSCRIPTION,
    how: RunSettings = RUN,
    at: ServiceOptions = SERVICE,
) -> int:
    """Consume and acknowledge messages, and show how many arrive in a second.

    The rate counts from the first message on. Without --count, --duration and --timeout the run lasts until
    Ctrl-C. With several consumers a run may take a few more messages than --count.
    """
    name = str(parse_topic(topic))
    at_least_1(consumers=readers.consumers)
    _positive(timeout=source.timeout)
    if source.subscription is not None and readers.kind == "checkpoint":
        raise UsageError("a checkpoint consumer has no subscription; leave --subscription out")
    reading = BenchReading(readers.consumers, readers.kind, source.subscription, source.start, source.timeout)
    bench = BenchCommand("consume", name, how, at)
    run = bench.run(lambda run, client: consume(run, client, name, reading), how.ending())
    return bench.tell(run, summary_data(run.received), received_lines(name, run))


@app.command(name="latency")
def bench_latency(
    topic: Topic,
    /,
    *,
    messages: MessageWords = MESSAGES,
    readers: ReaderWords = READERS,
    how: RunSettings = RUN,
    at: ServiceOptions = SERVICE,
) -> int:
    """Send and receive messages in one process, and show the time from each one's sending to its arrival.

    10,000 messages at 1,000 a second, unless the options say otherwise. The subscription of the run is
    deleted at its end. A message that does not arrive is counted as lost, and the command fails.
    """
    name = str(parse_topic(topic))
    at_least_1(consumers=readers.consumers)
    trip = RoundTrip(
        messages.sending(rate=LATENCY_RATE),
        BenchReading(readers.consumers, readers.kind, None, "latest", None),
        messages.workload(MARKED_BYTES),
    )
    bench = BenchCommand("latency", name, how, at)
    run = bench.run(
        lambda run, client: LatencyRun(run, trip).measure(client, name), how.ending(LATENCY_COUNT)
    )
    lost = max(0, run.stored.messages - run.received.messages)
    data = {"stored": summary_data(run.stored), "end_to_end": summary_data(run.received), "lost": lost}
    lines = [*stored_lines(name, run), *received_lines(name, run)]
    if lost:
        lines.append(f"{counted(lost, 'message')} did not arrive")
    return bench.tell(run, data, lines) or (EXIT_FAILED if lost else 0)


class BenchCommand:
    """One command: connects, shows the run while it lasts, and tells its figures."""

    def __init__(self, command: str, topic: str, how: RunSettings, at: ServiceOptions) -> None:
        self._command = command
        self._topic = topic
        self._how = how
        self._role = role_of(at, os.environ)

    def run(self, work: Work, ending: Ending) -> BenchRun:
        """Do the work until it ends by itself or by a signal; return what it counted."""
        self._role.check_reachable()
        return asyncio.run(self._run(work, ending))

    async def _run(self, work: Work, ending: Ending) -> BenchRun:
        run = BenchRun(ending)
        tallies = {"publish": {"stored": run.stored}, "consume": {"received": run.received}}.get(
            self._command, {"stored": run.stored, "received": run.received}
        )
        display = Display(self._how.interval, tallies)
        async with self._role.open_async_client() as client:
            showing = None if self._how.quiet else asyncio.ensure_future(display.show())
            try:
                with run.ended_by_signals():
                    await work(run, client)
            finally:
                if showing is not None:
                    showing.cancel()
                    await asyncio.gather(showing, return_exceptions=True)
        return run

    def tell(self, run: BenchRun, data: dict[str, Any], lines: list[str]) -> int:
        """Print the summary; return the exit code: of a signal, of failed messages, or of success."""
        head = {"command": self._command, "topic": self._topic}
        left = [f"left behind: {one}" for one in run.left]
        tell(head | data | {"left": run.left}, *lines, *left, as_json=self._how.as_json)
        if run.signal_number is not None:
            return 128 + run.signal_number
        return EXIT_FAILED if run.stored.errors else 0


def stored_lines(topic: str, run: BenchRun) -> list[str]:
    return summary_lines(f"published to {topic}", run.stored)


def received_lines(topic: str, run: BenchRun) -> list[str]:
    return summary_lines(f"received from {topic}", run.received)


def _positive(**numbers: float | None) -> None:
    """Raise UsageError if one of these options is given and is not a positive finite number."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise UsageError(f"--{name} is {number:g}; it takes a number above 0")
