"""The producers, consumers and registrations of one connection that are still being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from anabranch.errors import ServiceNotReadyError, TooManyRequestsError

OBJECTS_MAX: Final = 20_000
"""How many producers and consumers one connection may have."""


class Openings:
    """Remembers which objects a client closed, or lost with its connection, while they were being made.

    Making an object takes several awaits. Without this note, an object whose client closed it meanwhile would
    be attached and stay so.
    """

    def __init__(self, count_made: Callable[[], int]) -> None:
        self._count_made = count_made
        self._closed_early: dict[tuple[str, int], bool] = {}
        """By kind and number; True once the client closed it."""
        self._ended = False

    @contextmanager
    def begin(self, what: str, number: int) -> Iterator[None]:
        """Mark a producer or consumer as being made; ServiceNotReadyError when it is being made already."""
        key = (what, number)
        if key in self._closed_early:
            raise ServiceNotReadyError(f"{what} {number} is being made already")
        if self._count_made() >= OBJECTS_MAX:
            raise TooManyRequestsError(f"a connection has at most {OBJECTS_MAX} producers and consumers")
        self._closed_early[key] = False
        try:
            yield
        finally:
            del self._closed_early[key]

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._closed_early

    def cancel(self, what: str, number: int) -> bool:
        """Note that the client closed a producer or consumer. Returns whether it is still being made."""
        if (what, number) not in self._closed_early:
            return False
        self._closed_early[what, number] = True
        return True

    def is_cancelled(self, what: str, number: int) -> bool:
        """Whether the client closed, or lost, the producer or consumer that is being made."""
        return self._ended or self._closed_early.get((what, number), False)

    def end(self) -> None:
        """Note that the connection is gone."""
        self._ended = True
