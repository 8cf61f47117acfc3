"""The session of a simulated control process with its metadata store, which ends while the process lives."""

from __future__ import annotations

from collections.abc import Callable

from simulation.world.faults import SimStore

RECONNECT_S = (0.0, 2.0)
"""Seconds until a process that runs learns that its session is over."""


class SimSession(SimStore):
    """A session that ends when the process was silent for too long; then the store begins another by itself.

    The process knows by its own clock that the session may be over, and learns only later that it is, when
    the store has answered again. Its calls go on in the new session meanwhile.
    """

    lost: Callable[[], None] = staticmethod(lambda: None)
    is_over = False

    def lapse(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._process.context.copy().run(self._loop.call_soon, self._reconnect)
        super().lapse()

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Watch as any store does, but do not notify a process whose session is over."""

        def told(path: str) -> None:
            if not self.is_over:
                changed(path)

        return super().watch(prefix, told)

    def _reconnect(self) -> None:
        self._loop.call_later(self._rng.uniform(*RECONNECT_S), self.lost)

    def session_left_s(self) -> float:
        """Return for how many seconds the session certainly still exists, as ZooKeeper's adapter does."""
        return 0.0 if self.is_over else self._lease_s - (self._loop.time() - self._heard_at)
