"""Keys whose messages wait because the application has refused one of them. Pure.

A refused message comes again when its pause is over, and then the later messages of its key in order. A
message without a key waits alone.

Example: a1 is refused and may come again at 5.0. Of a2, b1 and a3, which arrive next, only b1 is handed out.
Nothing is due at 4.0; at 5.0 a1, a2 and a3 are handed out, in this order.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

M = TypeVar("M")


class PausedKey(Generic[M]):
    """The messages of one key that wait."""

    __slots__ = ("behind", "refused")

    def __init__(self) -> None:
        self.refused: list[tuple[int, float, M]] = []
        """Refused messages by their number, each with the time when it may come again."""
        self.behind: deque[M] = deque()
        """Later messages that the application has not had, in order."""

    @property
    def due_at(self) -> float:
        """When the first message of the key may come again."""
        return self.refused[0][1] if self.refused else -math.inf


class KeyPauses(Generic[M]):
    """The paused keys of one consumer."""

    def __init__(self, key_of: Callable[[M], object]) -> None:
        self.held = 0
        """All messages that wait."""
        self._key_of = key_of
        self._keys: dict[object, PausedKey[M]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def next_due(self) -> float:
        """When the next key continues; infinite while no key does."""
        return min((paused.due_at for paused in self._keys.values()), default=math.inf)

    def refuse(self, message: M, number: int, due_at: float) -> None:
        """Pause the key of a message that comes again at `due_at`; `number` is its place in the order."""
        key = self._key_of(message)
        paused = self._keys.setdefault(("alone", number) if key is None else key, PausedKey())
        insort(paused.refused, (number, due_at, message), key=lambda refused: refused[0])
        self.held += 1

    def settle(self, message: M, number: int) -> None:
        """Remove a refused message that does not come again; the next one of its key need not wait for it."""
        key = self._key_of(message)
        paused = self._keys.get(("alone", number) if key is None else key)
        if paused is not None:
            before = len(paused.refused)
            paused.refused = [refused for refused in paused.refused if refused[0] != number]
            self.held -= before - len(paused.refused)

    def hasten(self, now: float, wanted: Callable[[M], bool]) -> int:
        """Let refused messages that wait without end come again `now`; return the number of their keys."""
        hastened = 0
        for paused in self._keys.values():
            if paused.due_at == math.inf and wanted(paused.refused[0][2]):
                number, _, message = paused.refused[0]
                paused.refused[0] = (number, now, message)
                hastened += 1
        return hastened

    def sift(self, messages: Iterable[M]) -> list[M]:
        """Return the messages that may be handed out, and let those of paused keys wait."""
        free: list[M] = []
        for message in messages:
            key = self._key_of(message)
            paused = None if key is None else self._keys.get(key)
            if paused is None:
                free.append(message)
            else:
                paused.behind.append(message)
                self.held += 1
        return free

    def take_due(self, now: float) -> list[M]:
        """End the pauses that are over, and return the messages of their keys, each key in order."""
        due: list[M] = []
        for key, paused in list(self._keys.items()):
            if paused.due_at <= now:
                del self._keys[key]
                due += [message for _, _, message in paused.refused]
                due += paused.behind
        self.held -= len(due)
        return due

    def withdraw(self, unwanted: Callable[[M], bool]) -> list[M]:
        """Remove messages that the broker delivers again, and return them."""
        removed: list[M] = []
        for key, paused in list(self._keys.items()):
            messages = [*(message for _, _, message in paused.refused), *paused.behind]
            removed += filter(unwanted, messages)
            paused.refused = [refused for refused in paused.refused if not unwanted(refused[2])]
            paused.behind = deque(message for message in paused.behind if not unwanted(message))
            if not paused.refused and not paused.behind:
                del self._keys[key]
        self.held -= len(removed)
        return removed
