"""Calls of other threads into the loop's thread: each returns, raises, or is refused and does nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from anabranch.client.blocking.portal import Portal
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    thread = made.stop()
    if thread is not None:
        thread.join(10)
        assert not thread.is_alive()


def test_a_call_runs_in_the_thread_of_the_loop(portal: Portal) -> None:
    assert portal.call("look", lambda: threading.current_thread().name) == "anabranch client"


def test_a_call_raises_the_error_of_its_function(portal: Portal) -> None:
    def fail() -> None:
        raise SystemExit("enough")

    with pytest.raises(SystemExit, match="enough"):
        portal.call("fail", fail)
    assert portal.call("look", lambda: 1) == 1


def test_the_exit_of_a_coroutine_reaches_its_caller_and_not_the_loop(portal: Portal) -> None:
    async def leave() -> None:
        raise SystemExit("enough")

    with pytest.raises(SystemExit, match="enough"):
        portal.run("leave", leave, 5)
    assert portal.call("look", lambda: 1) == 1


def test_a_call_in_the_thread_of_the_loop_is_refused_instead_of_waiting_for_itself(portal: Portal) -> None:
    with pytest.raises(InvalidConfigurationError, match="wait for itself"):
        portal.call("outer", lambda: portal.call("inner", int))


def test_a_call_after_the_end_is_refused(portal: Portal) -> None:
    portal.call("start", int)
    portal.stop()
    with pytest.raises(AlreadyClosedError):
        portal.call("look", int)


class InterruptedCallError(Exception):
    """Raised in the calling thread by a signal."""


def test_an_interrupted_caller_has_taken_nothing(portal: Portal) -> None:
    caller, free, taken, armed = threading.get_ident(), threading.Event(), list[int](), list[bool]()

    def keep_the_loop_and_interrupt() -> None:
        # A signal just before the caller waits does not end its wait, so that one may not be enough.
        while not free.wait(0.01):
            signal.pthread_kill(caller, signal.SIGUSR1)

    def interrupted(*_: object) -> None:
        if armed:
            armed.clear()
            raise InterruptedCallError

    def take() -> None:
        armed.append(True)
        portal.call("take", lambda: taken.append(1))

    usual = signal.signal(signal.SIGUSR1, interrupted)
    try:
        portal.call("start", int)
        portal.call_soon(keep_the_loop_and_interrupt)
        with pytest.raises(InterruptedCallError):
            take()
    finally:
        free.set()
        portal.call("look", int)
        signal.signal(signal.SIGUSR1, usual)
    assert taken == []
