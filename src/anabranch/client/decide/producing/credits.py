"""The credit of producers: how much they may send before the broker has taken or answered it. Pure.

An Anabranch broker limits the bytes of a connection that it has not read yet, and reports now and then how
many it has read. So other requests on the connection never wait behind many entries. It also limits the bytes
and messages of a producer without a receipt, for instance to nothing while a rate is exceeded. Every limit
above zero lets at least one entry of any size pass. A broker that reports nothing sets no limit.

Example: the limit of a connection is 100,000 bytes, and each entry has 60,000 bytes and counts 1,024 more.
The first entry passes, and the second too, because 61,024 is below the limit. The third waits at 122,048.
When the broker reports that it has taken 61,024 bytes, it passes as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from anabranch.protocol.credits import ENTRY_CREDIT_BYTES

Turn = Callable[[], None]


class LinkCredit:
    """The credit that all producers of one connection share; those without room wait in line."""

    __slots__ = ("_line", "bytes_max", "sent_bytes", "taken_bytes")

    def __init__(self) -> None:
        self.bytes_max: float = math.inf
        self.sent_bytes = 0
        self.taken_bytes = 0
        """Bytes of entries that the broker has taken, of those in `sent_bytes`."""
        self._line: dict[Turn, None] = {}

    @property
    def has_line(self) -> bool:
        return bool(self._line)

    @property
    def has_room(self) -> bool:
        return self.sent_bytes - self.taken_bytes < self.bytes_max

    def limit(self, bytes_max: float) -> None:
        """Follow the limit of the broker from now on."""
        self.bytes_max = bytes_max
        self._serve()

    def taken(self, taken_bytes: int) -> None:
        """Note that the broker has taken this many bytes since the connection began."""
        self.taken_bytes = max(self.taken_bytes, min(taken_bytes, self.sent_bytes))
        self._serve()

    def wait(self, turn: Turn) -> None:
        """Call `turn` once, when there is room and no earlier producer waits."""
        self._line[turn] = None

    def forget(self, turn: Turn) -> None:
        self._line.pop(turn, None)

    def close(self) -> None:
        """Give no producer its turn any more, because the connection is gone."""
        self._line.clear()

    def _serve(self) -> None:
        """Give producers in line their turn, as long as there is room."""
        line = self._line
        while line and self.has_room:
            turn = next(iter(line))
            del line[turn]
            turn()


class ProducerCredit:
    """The credit of the producer of one segment, for one registration."""

    __slots__ = ("_late", "bytes_max", "link", "messages_max", "used_bytes", "used_messages")

    def __init__(self) -> None:
        self.link = LinkCredit()
        self.bytes_max: float = math.inf
        self.messages_max: float = math.inf
        self.used_bytes = self.used_messages = 0
        self._late: deque[tuple[int, int]] = deque()

    def begin(self, link: LinkCredit) -> None:
        """Use this connection from now on, whose broker has set no limit for the producer yet."""
        self.link = link
        self.used_bytes = self.used_messages = 0
        self.bytes_max = self.messages_max = math.inf
        self._late.clear()

    def limit(self, bytes_max: float, messages_max: float) -> None:
        """Follow the limits of the broker from now on."""
        self.bytes_max, self.messages_max = bytes_max, messages_max

    @property
    def has_own_room(self) -> bool:
        """Whether the producer's own limits let the next entry pass."""
        return self.used_bytes < self.bytes_max and self.used_messages < self.messages_max

    @property
    def has_room(self) -> bool:
        """Whether the next entry may be sent; it may be larger than what is left."""
        return self.has_own_room and self.link.has_room

    # Each entry counts a fixed amount beyond its bytes: its work at the broker is not free, and a flood of
    # tiny entries would otherwise pass any limit on bytes. The limit is checked before an entry and not with
    # it, so an entry larger than the whole limit still passes when nothing else is under way.
    def take(self, size: int, messages: int) -> None:
        """Count an entry that is sent."""
        size += ENTRY_CREDIT_BYTES
        self.used_bytes += size
        self.used_messages += messages
        self.link.sent_bytes += size

    def give_back(self, size: int, messages: int) -> None:
        """Uncount an entry that the broker has answered."""
        self.used_bytes -= size + ENTRY_CREDIT_BYTES
        self.used_messages -= messages

    def keep(self, size: int, messages: int) -> None:
        """Note an entry that the producer has given up; the broker still answers it."""
        self._late.append((size, messages))

    def answered_late(self) -> None:
        """Uncount the first entry that the producer has given up, which the broker has answered now."""
        if self._late:
            self.give_back(*self._late.popleft())


class CreditWaits:
    """How often, and how long, the segments of one producer have waited for credit."""

    __slots__ = ("_seconds", "_since", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seconds = 0.0
        self._since: dict[object, float] = {}

    def begin(self, segment: object, now: float) -> None:
        """Note that a segment waits; one that waits already is fine."""
        if segment not in self._since:
            self.count += 1
            self._since[segment] = now

    def end(self, segment: object, now: float) -> None:
        """Note that a segment does not wait any more; one that did not wait is fine."""
        since = self._since.pop(segment, None)
        if since is not None:
            self._seconds += now - since

    def __contains__(self, segment: object) -> bool:
        return segment in self._since

    def seconds(self, now: float) -> float:
        """Return the waits so far, of all segments together, with those that go on."""
        return self._seconds + sum(now - since for since in self._since.values())
