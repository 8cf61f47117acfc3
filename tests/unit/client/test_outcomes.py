"""Futures of the blocking producer behave as those of concurrent.futures, in every order of events."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, as_completed, wait
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.client.blocking.outbox import Outbox
from anabranch.client.blocking.outcomes import SendOutcome
from anabranch.client.decide.producing.outgoing import FAILED, STORED, Outgoing, Places
from anabranch.client.produce.futures import complete
from anabranch.errors import AlreadyClosedError, SendTimeoutError
from anabranch.model.ids import MessageId

STORED_ID = MessageId(1, 2, 3, 4, 10)


def stored() -> Outgoing:
    return Outgoing(0.0, count=10, state=STORED, place=(1, 2, 3))


def refused() -> Outgoing:
    return Outgoing(0.0, count=10, state=FAILED, error=SendTimeoutError("too late"))


def later(work: Callable[[], object]) -> None:
    """Do the work in another thread, while the caller waits."""
    threading.Timer(0.02, work).start()


def test_an_outcome_waits_for_the_thread_that_settles_it() -> None:
    outcome: SendOutcome[MessageId] = SendOutcome()
    assert (outcome.done(), outcome.running(), outcome.cancelled()) == (False, False, False)
    with pytest.raises(TimeoutError):
        outcome.result(timeout=0)
    later(lambda: outcome.settle(stored(), 4))
    assert outcome.result(timeout=10) == STORED_ID
    assert outcome.done()


def test_an_outcome_that_is_settled_at_once_needs_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # A watch costs thirty times as much as the look, and programs look at thousands of outcomes at a time.
    monkeypatch.delattr("anabranch.client.blocking.outcomes.OutcomeWatch")
    outcome: SendOutcome[MessageId] = SendOutcome()
    outcome.settle(stored(), 4)
    assert outcome.done()
    assert outcome.result(timeout=0) == STORED_ID
    assert outcome.exception(timeout=0) is None


def test_an_outcome_follows_its_batch_and_the_batch_that_took_its_message_over() -> None:
    first, second = Outgoing(0.0, count=10), Outgoing(0.0, count=10)
    outcome: SendOutcome[MessageId] = SendOutcome()
    outcome.settle(first, 7)
    assert not outcome.done()
    first.moved = Places([first] * 7 + [second], [0] * 7 + [4])
    assert not outcome.done()
    with pytest.raises(TimeoutError):
        outcome.result(timeout=0)
    second.place, second.state = (1, 2, 3), STORED
    assert outcome.done()
    assert outcome.result() == STORED_ID


def test_the_first_caller_that_waits_asks_for_the_outcome() -> None:
    asked: list[SendOutcome[MessageId]] = []
    outcome: SendOutcome[MessageId] = SendOutcome(asked.append)
    assert not outcome.done()
    assert asked == []
    for _ in range(2):
        with pytest.raises(TimeoutError):
            outcome.result(timeout=0)
    assert asked == [outcome]


def test_a_caller_that_waits_for_a_message_in_a_batch_is_told_when_the_batch_is_stored() -> None:
    class InstantPortal:
        def call_soon(self, call: Callable[[], object]) -> None:
            call()

    batch, called = Outgoing(0.0, count=10), list[Any]()
    publisher: Any = SimpleNamespace(intake=None)
    outcome: SendOutcome[MessageId] = SendOutcome(Outbox(cast(Any, InstantPortal()), publisher).tell)
    outcome.settle(batch, 4)
    outcome.add_done_callback(called.append)
    assert called == []
    batch.place, batch.state = (1, 2, 3), STORED
    complete(batch)
    assert called == [outcome]


def test_callbacks_that_know_their_future_are_freed() -> None:
    class Token:
        pass

    token = Token()
    alive = weakref.ref(token)
    outcome: SendOutcome[MessageId] = SendOutcome()
    outcome.add_done_callback(partial(lambda *_: None, token, outcome))
    outcome.settle(stored(), 4)
    del token
    assert alive() is None


@pytest.mark.parametrize("early", [True, False])
def test_a_failure_is_raised_and_marked_as_seen(early: bool) -> None:
    batch, outcome = refused(), SendOutcome[MessageId]()
    if early:
        outcome.settle(batch, 0)
    else:
        later(lambda: outcome.settle(batch, 0))
    with pytest.raises(SendTimeoutError, match="too late"):
        outcome.result(timeout=10)
    assert batch.seen


def test_looking_whether_it_is_done_does_not_mark_a_failure_as_seen() -> None:
    batch, outcome = refused(), SendOutcome[MessageId]()
    outcome.settle(batch, 0)
    assert outcome.done()
    assert not batch.seen


def test_a_producer_that_ends_fails_its_outcomes() -> None:
    outcome: SendOutcome[MessageId] = SendOutcome()
    later(lambda: outcome.fail(asyncio.CancelledError()))
    with pytest.raises(AlreadyClosedError, match="before the message was sent"):
        outcome.result(timeout=10)


@pytest.mark.parametrize("early", [True, False])
def test_callbacks_are_called_once(early: bool) -> None:
    called: list[Any] = []
    outcome: SendOutcome[MessageId] = SendOutcome()
    if early:
        outcome.settle(stored(), 4)
    outcome.add_done_callback(called.append)
    if not early:
        assert called == []
        outcome.settle(stored(), 4)
    assert called == [outcome]


def test_the_functions_of_concurrent_futures_accept_outcomes() -> None:
    first, second, third = (SendOutcome[MessageId]() for _ in range(3))
    first.settle(stored(), 4)
    later(lambda: second.settle(stored(), 4))
    later(lambda: third.settle(refused(), 0))
    done, pending = wait([first, second, third], timeout=10)
    assert (len(done), len(pending)) == (3, 0)
    finished: list[Future[MessageId]] = [first, second, third]
    assert set(as_completed(finished, timeout=10)) == done


def test_a_loop_awaits_an_outcome() -> None:
    outcome: SendOutcome[MessageId] = SendOutcome()

    with asyncio.Runner() as runner:
        later(lambda: outcome.settle(stored(), 4))
        waiting = asyncio.wait_for(asyncio.wrap_future(outcome, loop=runner.get_loop()), 10)
        assert runner.run(waiting) == STORED_ID


def test_a_cancelled_outcome_stays_cancelled() -> None:
    called: list[Any] = []
    outcome: SendOutcome[MessageId] = SendOutcome()
    outcome.add_done_callback(called.append)
    assert outcome.cancel()
    outcome.settle(stored(), 4)
    assert (outcome.cancelled(), outcome.done(), len(called)) == (True, True, 1)
    with pytest.raises(CancelledError):
        outcome.result(timeout=0)
    done: SendOutcome[MessageId] = SendOutcome()
    done.settle(stored(), 4)
    assert not done.cancel()


def test_no_wait_is_lost_however_threads_take_turns() -> None:
    outcomes = [SendOutcome[MessageId]() for _ in range(2000)]

    def settle_all() -> None:
        for outcome in outcomes:
            outcome.settle(stored(), 4)

    settling = threading.Thread(target=settle_all)
    settling.start()
    assert all(outcome.result(timeout=10) == STORED_ID for outcome in outcomes)
    settling.join()
