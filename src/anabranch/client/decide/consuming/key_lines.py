"""Which of the received messages may be handled now: a line for each key, one message of it at a time. Pure.

A line is *ready* (its first message may start), *running* (a handler has its first message) or *paused* (its
first message failed and starts again later). A message without a key has a line of its own. Messages never
overtake each other in a line, and a paused line delays no other.

Example: two messages may run at a time, and a1, a2, b1 and c1 arrive, named after their keys. a1 and b1
start; a2 waits behind a1, and c1 is ready. b1 fails and pauses until 10.0, so c1 starts. When a1 is done, a2
starts. At 10.0 the line of b is ready again.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

M = TypeVar("M")


class KeyLine(Generic[M]):
    """The unfinished messages of one key, in the order they arrived."""

    __slots__ = ("behind", "first", "key")

    def __init__(self, key: object, first: M) -> None:
        self.key = key
        """None for a line of a single message, which no other message can join."""
        self.first = first
        """The message that is ready, running or paused."""
        self.behind: deque[M] | None = None
        """Later messages; made with the second message, because most lines have one."""


class KeyLines(Generic[M]):
    """The lines of one run, of which at most `concurrency` run at a time."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.running = 0
        self.held = 0
        """All messages in lines: running, ready, paused, and those behind them."""
        self._lines: dict[object, KeyLine[M]] = {}
        self._ready: deque[KeyLine[M]] = deque()
        self._paused: list[tuple[float, int, KeyLine[M]]] = []
        """A heap by the time when the first message of the line may start again."""
        self._pauses = 0

    @property
    def paused(self) -> int:
        """Lines whose first message waits for its next attempt."""
        return len(self._paused)

    @property
    def ready(self) -> int:
        """Lines that could run if fewer others were running."""
        return len(self._ready)

    @property
    def next_due(self) -> float | None:
        """When the next paused line may run again."""
        return self._paused[0][0] if self._paused else None

    def keys(self) -> frozenset[object]:
        """Return the keys of all lines."""
        return frozenset(self._lines)

    def add(self, key: object, message: M) -> None:
        """Put an arrived message at the end of its line; without a key it gets a line of its own."""
        self.held += 1
        if key is None:
            self._ready.append(KeyLine(None, message))
            return
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = KeyLine(key, message)
            self._ready.append(line)
        elif line.behind is None:
            line.behind = deque((message,))
        else:
            line.behind.append(message)

    def start(self) -> KeyLine[M] | None:
        """Return the line whose first message starts now; None if no line is ready, or enough run."""
        if self.running >= self.concurrency or not self._ready:
            return None
        self.running += 1
        return self._ready.popleft()

    def finish(self, line: KeyLine[M]) -> None:
        """Remove the first message of a running line; the next one becomes ready behind all other lines."""
        self.running -= 1
        self._advance(line)

    def pause(self, line: KeyLine[M], message: M, due_at: float) -> None:
        """Let a running line wait until `due_at`, and then try `message` in the place of its first."""
        self.running -= 1
        line.first = message
        self._pauses += 1
        heapq.heappush(self._paused, (due_at, self._pauses, line))

    def resume(self, now: float) -> None:
        """Make the lines ready whose time has come."""
        while self._paused and self._paused[0][0] <= now:
            self._ready.append(heapq.heappop(self._paused)[2])

    def release(self, wanted: Callable[[M], bool]) -> int:
        """Make lines ready that were paused without end; return their number."""
        parked = [line for due_at, _, line in self._paused if due_at == math.inf and wanted(line.first)]
        chosen = set(map(id, parked))
        self._paused = [pause for pause in self._paused if id(pause[2]) not in chosen]
        heapq.heapify(self._paused)
        self._ready.extend(parked)
        return len(parked)

    def withdraw(self, unwanted: Callable[[M], bool]) -> list[M]:
        """Remove the unwanted messages that are not running, and return them, each line in order."""
        removed: list[M] = []

        def sift(messages: Iterable[M]) -> deque[M]:
            kept: deque[M] = deque()
            for message in messages:
                (removed if unwanted(message) else kept).append(message)
            return kept

        idle = {*map(id, self._ready), *(id(line) for _, _, line in self._paused)}
        for line in self._lines.values():
            if id(line) not in idle:
                line.behind = sift(line.behind or ())
        ready, self._ready = self._ready, deque()
        paused, self._paused = self._paused, []
        for line in ready:
            if self._replace(line, sift((line.first, *(line.behind or ())))):
                self._ready.append(line)
        for pause in paused:
            line, failed = pause[2], pause[2].first
            if not self._replace(line, sift((line.first, *(line.behind or ())))):
                continue
            if line.first is failed:
                heapq.heappush(self._paused, pause)
            else:
                # The next message has nothing to wait for.
                self._ready.append(line)
        self.held -= len(removed)
        return removed

    def _replace(self, line: KeyLine[M], messages: deque[M]) -> bool:
        """Let a line have these messages; False if there are none, and the line ends."""
        if messages:
            line.first, line.behind = messages.popleft(), messages
            return True
        self._lines.pop(line.key, None)
        return False

    def _advance(self, line: KeyLine[M]) -> None:
        self.held -= 1
        if line.behind:
            line.first = line.behind.popleft()
            self._ready.append(line)
        elif line.key is not None:
            del self._lines[line.key]
