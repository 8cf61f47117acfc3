"""Jobs of contenders in processes of their own, so that the threads of one client do not slow the next."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Final

from benchmarks.peers.contender import Contender

JOB_S_MAX: Final = 90.0
READY_S_MAX: Final = 60.0
_SPAWN: Final = get_context("spawn")


class JobError(Exception):
    """A job failed or took too long."""


class Job:
    """One method of a contender, running in a child process."""

    def __init__(self, contender: Contender, method: str, *arguments: object) -> None:
        self._what = f"{contender.name}, {method}"
        self._answer, theirs = _SPAWN.Pipe(duplex=False)
        target = (theirs, contender, method, arguments)
        self._process = _SPAWN.Process(target=_perform, args=target, daemon=True)
        self._process.start()
        theirs.close()

    def result(self, within_s: float = JOB_S_MAX) -> Any:
        """The value of the method; raises JobError if there is none in time."""
        try:
            if not self._answer.poll(within_s):
                raise JobError(f"{self._what}: no result within {within_s:g} s")
            error, value = self._answer.recv()
        except EOFError:
            raise JobError(f"{self._what}: the process died") from None
        finally:
            self.end()
        if error is not None:
            raise JobError(f"{self._what}: {error}")
        return value

    def end(self) -> None:
        """End the process; some libraries keep it alive with their threads."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def end_to_end(contender: Contender, topic: str, rate: int, seconds: float) -> Sequence[float]:
    """The seconds from each send to its reception by another process; the first fifth warms up."""
    count = int(rate * seconds)
    ready: Event = _SPAWN.Event()
    receiver = Job(contender, "receive_stamped", topic, count, ready)
    try:
        if not ready.wait(READY_S_MAX):
            raise JobError(f"{contender.name}: no consumer within {READY_S_MAX:g} s")
        Job(contender, "send_paced", topic, rate, seconds).result()
    except JobError:
        receiver.end()
        raise
    found: list[float] = receiver.result()
    return found[count // 5 :]


def _perform(answer: Connection, contender: Contender, method: str, arguments: Sequence[object]) -> None:
    try:
        answer.send((None, getattr(contender, method)(*arguments)))
    except BaseException as error:
        answer.send((f"{type(error).__name__}: {error}", None))
