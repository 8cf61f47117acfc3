"""Acknowledgements of the blocking client: noted without crossing threads, and applied in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from anabranch.client.blocking import ack_notes
from anabranch.client.blocking.ack_notes import AckNotes
from anabranch.client.blocking.portal import Portal
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError

METHOD = "QueueConsumer.acknowledge"


class NotedTwin:
    """Keeps the groups in which notes arrive."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []

    def note(self, messages: Sequence[Any]) -> None:
        self.groups.append(list(messages))


async def nothing() -> None:
    pass


def test_notes_of_a_busy_loop_arrive_together_and_before_the_next_call() -> None:
    portal, twin, free = Portal(), NotedTwin(), threading.Event()
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)
    portal.run("start", nothing)
    portal.call_soon(lambda: free.wait(10))
    messages: list[Any] = list(range(1000))
    for message in messages:
        notes.put(message)
    free.set()
    portal.run("flush", nothing)
    assert twin.groups == [messages]
    portal.stop()


def test_a_note_after_the_end_of_the_client_is_refused() -> None:
    portal, twin = Portal(), NotedTwin()
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)
    portal.run("start", nothing)
    thread = portal.stop()
    assert thread is not None
    message: Any = "message"
    for _ in range(2):
        with pytest.raises(AlreadyClosedError):
            notes.put(message)
    thread.join(10)
    assert not thread.is_alive()
    assert twin.groups == []


def test_a_note_from_the_thread_of_the_client_is_refused_by_name() -> None:
    portal, twin = Portal(), NotedTwin()
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)

    async def put() -> None:
        message: Any = "message"
        notes.put(message)

    with pytest.raises(InvalidConfigurationError, match=r"or await AsyncQueueConsumer\.acknowledge$"):
        portal.run("start", put)
    portal.stop()


class Steps:
    """A trace function that does something before every step of the notes' code, in the traced thread."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __call__(self, frame: FrameType, event: str, _: object) -> Steps | None:
        if frame.f_code.co_filename != ack_notes.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._act()
        return self


def test_notes_at_any_step_of_their_taking_are_taken_once() -> None:
    portal, twin = Portal(), NotedTwin()
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)
    messages: list[Any] = list(range(500))
    left, all_noted = iter(messages), threading.Event()

    def put_one() -> None:
        message = next(left, None)
        if message is None:
            all_noted.set()
        else:
            caller.submit(notes.put, message).result(10)

    portal.run("start", nothing)
    with ThreadPoolExecutor(1) as caller:
        portal.call_soon(lambda: sys.settrace(Steps(put_one)))
        put_one()
        assert all_noted.wait(10)
    portal.call_soon(lambda: sys.settrace(None))
    portal.run("flush", nothing)
    assert [message for group in twin.groups for message in group] == messages
    portal.stop()


@pytest.mark.parametrize("with_others", [False, True])
def test_notes_are_taken_once_if_the_loop_takes_at_any_step_of_noting(with_others: bool) -> None:
    portal, twin = Portal(), NotedTwin()
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)
    portal.run("start", nothing)
    others: list[Any] = []

    def take() -> None:
        if with_others:
            others.append(("another caller", len(others)))
            notes.put(others[-1])
        portal.run("take", nothing)

    messages: list[Any] = list(range(5))
    before = sys.gettrace()
    sys.settrace(Steps(take))
    try:
        for message in messages:
            notes.put(message)
    finally:
        sys.settrace(before)
    portal.run("flush", nothing)
    taken = [message for group in twin.groups for message in group]
    assert not with_others or len(others) > 10 * len(messages), "there are so many steps"
    assert [message for message in taken if message in messages] == messages
    assert [message for message in taken if message in others] == others
    portal.stop()


def test_notes_of_several_threads_are_taken_once_and_in_the_order_of_each_thread() -> None:
    portal, twin, per_thread = Portal(), NotedTwin(), 5000
    notes: AckNotes[bytes] = AckNotes(portal, twin, METHOD)
    portal.run("start", nothing)

    def put_all(caller: int) -> None:
        for number in range(per_thread):
            message: Any = (caller, number)
            notes.put(message)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        callers = [threading.Thread(target=put_all, args=(caller,)) for caller in range(4)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval_s)
    portal.run("flush", nothing)
    taken = [message for group in twin.groups for message in group]
    assert len(taken) == 4 * per_thread
    for caller in range(4):
        assert [number for name, number in taken if name == caller] == list(range(per_thread))
    portal.stop()
