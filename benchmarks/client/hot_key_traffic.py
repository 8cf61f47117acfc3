"""The traffic of the benchmark `hot-key`: what is sent and arrives when, and its figures.

A message that a consumer received late, or not at all, counts with its whole wait since it was due. This
module must not know how messages are sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.results import percentile_ms

RATE: Final = 3000
"""Messages per second; every second one has the hot key."""

HOT: Final = "hot"
CANDIDATES: Final = tuple(f"key-{number}" for number in range(96))
"""The other keys. Those of the stuck consumer are not used, because they wait with it."""

VALUE_BYTES: Final = 100
_NEVER: Final = -1.0


class Plan(NamedTuple):
    """How long each phase lasts."""

    warm_s: float
    calm_s: float
    stall_s: float
    drain_s: float
    """The longest time that the consumer of the hot key may take, after the stall, to receive everything."""

    @property
    def messages(self) -> int:
        return round((self.warm_s + self.calm_s + self.stall_s) * RATE)

    @property
    def stall_from(self) -> int:
        """The number of the first message of the stall."""
        return round((self.warm_s + self.calm_s) * RATE)


class Phase(NamedTuple):
    """The figures of the other keys during one phase."""

    rate: float
    p99_ms: float


class Traffic:
    """The messages of one run, by number."""

    def __init__(self, plan: Plan, keys: Sequence[str], began_s: float) -> None:
        self.plan = plan
        self.keys = keys
        self._began_s = began_s
        self.disorder = 0
        """Messages that came after a later one of their key."""
        self._arrived = array("d", [_NEVER]) * plan.messages
        self._last: dict[str, int] = {}
        self._missing = plan.messages

    @property
    def complete(self) -> bool:
        return not self._missing

    @property
    def missing(self) -> int:
        """Messages that no consumer has received yet."""
        return self._missing

    def due_s(self, number: int) -> float:
        return self._began_s + number / RATE

    def key(self, number: int) -> str:
        return HOT if number % 2 == 0 else self.keys[number // 2 % len(self.keys)]

    def value(self, number: int) -> bytes:
        return (b"%d " % number).ljust(VALUE_BYTES, b"x")

    def note(self, value: bytes, now_s: float) -> None:
        """Note that a consumer received this value; probes do not count as traffic."""
        number = int(value.partition(b" ")[0])
        if number < 0 or self._arrived[number] != _NEVER:
            return
        key = self.key(number)
        self.disorder += self._last.get(key, -1) > number
        self._last[key] = number
        self._arrived[number] = now_s
        self._missing -= 1

    def calm(self) -> Phase:
        first = round(self.plan.warm_s * RATE)
        return self._phase(first, self.plan.stall_from)

    def stalled(self) -> Phase:
        return self._phase(self.plan.stall_from, self.plan.messages)

    def _phase(self, first: int, end: int) -> Phase:
        """The figures of the other keys' messages with the numbers from `first` until `end`."""
        over_s = self.due_s(end)
        waits: list[float] = []
        arrived = 0
        for number in range(first | 1, end, 2):
            at_s = self._arrived[number]
            in_time = at_s != _NEVER and at_s < over_s
            arrived += in_time
            waits.append((at_s if in_time else over_s) - self.due_s(number))
        return Phase(arrived / (over_s - self.due_s(first)), percentile_ms(waits, 99))


PROBE: Final = b"-1 "


class Owners:
    """Which consumer receives which key, from one probe of each key."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        return len(self.of) == len(CANDIDATES) + 1

    def others(self) -> list[str]:
        """The keys whose consumer is not that of the hot key."""
        return [key for key in CANDIDATES if self.of[key] != self.of[HOT]]
