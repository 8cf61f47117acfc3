"""Each checker sees its own fault and is silent about a clean run."""

from __future__ import annotations

import pytest

from anabranch.model.layout import Layout
from simulation.judges import checkers
from simulation.judges.checkers import ClientHistory, Delivered, SendResult, Sent


def place_of(sent: Sent) -> tuple[int, ...]:
    return (0, 0, list(b"abc").index(ord(sent.key)) * 100 + sent.number, -1)


def received(sent: Sent, consumer: str = "c") -> Delivered:
    return Delivered(sent.uid, sent.key, place_of(sent), consumer)


@pytest.fixture
def history() -> ClientHistory:
    """Three keys, four messages each, all confirmed, none received yet."""
    history = ClientHistory()
    for _ in range(4):
        for key in "abc":
            history.send("p", key).outcome = SendResult.OK
    return history


def deliver(history: ClientHistory, *uids: str) -> None:
    for uid in uids:
        history.receive("s", received(history.sent[uid]))


def all_violations(history: ClientHistory) -> list[str]:
    return checkers.violations(history, ordered=["s"])


def test_a_clean_run_has_no_violation(history: ClientHistory) -> None:
    deliver(history, *history.sent)
    history.layout(Layout.initial(1, now_ms=0))
    history.layout(history.layouts[0].split(0, now_ms=1))
    assert all_violations(history) == []


def test_a_confirmed_message_that_never_came_is_lost(history: ClientHistory) -> None:
    deliver(history, *(uid for uid in history.sent if uid != "p/b/3"))
    assert list(checkers.lost(history, "s")) == ["s: lost p/b/3"]


def test_an_unconfirmed_message_may_be_missing_or_there(history: ClientHistory) -> None:
    history.sent["p/b/3"].outcome = SendResult.UNKNOWN
    history.sent["p/c/3"].outcome = SendResult.UNKNOWN
    deliver(history, *(uid for uid in history.sent if uid != "p/b/3"))
    assert all_violations(history) == []


def test_a_message_that_was_never_sent_is_invented(history: ClientHistory) -> None:
    history.receive("s", Delivered("p/z/0", "z", (0, 0, 0, 0), "c"))
    assert "never sent" in next(checkers.invented(history, "s"))


def test_a_message_with_another_key_is_invented(history: ClientHistory) -> None:
    history.receive("s", Delivered("p/a/0", "b", (0, 0, 0, 0), "c"))
    assert "with key 'b'" in next(checkers.invented(history, "s"))


def test_a_definite_failure_must_not_appear(history: ClientHistory) -> None:
    history.sent["p/a/1"].outcome = SendResult.FAILED
    deliver(history, "p/a/1")
    assert "its sending failed" in next(checkers.invented(history, "s"))


def test_a_step_back_within_a_key_is_seen(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/2", "p/a/1")
    assert list(checkers.out_of_order(history, "s")) == ["s: p/a/1 came after number 2 to c"]


def test_a_redelivery_is_no_step_back(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1", "p/a/0", "p/a/1", "p/a/2")
    assert list(checkers.out_of_order(history, "s")) == []


def test_keys_may_overtake_each_other(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1", "p/b/0", "p/c/0", "p/a/2")
    assert list(checkers.out_of_order(history, "s")) == []


def test_a_gap_is_seen_when_it_happens(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/2")
    assert list(checkers.skipped(history, "s")) == ["s: p/a/2 came before p/a/1"]


def test_a_message_stored_at_two_places_is_seen(history: ClientHistory) -> None:
    deliver(history, "p/a/0")
    history.receive("t", Delivered("p/a/0", "a", (1, 5, 0, -1), "c"))
    assert "is stored at" in next(checkers.stored_twice(history))


def test_a_place_that_changes_its_message_is_seen(history: ClientHistory) -> None:
    history.receive("s", Delivered("p/a/0", "a", (1, 5, 0, -1), "c"))
    history.receive("s", Delivered("p/a/1", "a", (1, 5, 0, -1), "c"))
    assert "held p/a/0, then p/a/1" in next(checkers.stored_twice(history))


def test_a_delivery_after_its_confirmed_acknowledgement_is_seen(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1")
    history.acknowledge("s", ["p/a/0"])
    deliver(history, "p/a/0")
    assert list(checkers.repeated_after_ack(history, "s")) == [], "it may have been on its way"
    history.note_quiet("s")
    deliver(history, "p/a/0", "p/a/1")
    assert list(checkers.repeated_after_ack(history, "s")) == [
        "s: p/a/0 came again after its acknowledgement was confirmed"
    ]


def test_newcomers_may_acknowledge_their_own_messages(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1")
    history.acknowledge("s", ["p/a/0"])
    history.note_quiet("s")
    deliver(history, "p/a/1")
    history.acknowledge("s", ["p/a/1"])
    assert list(checkers.repeated_after_ack(history, "s")) == []


def test_a_message_from_before_and_after_a_checkpoint_is_seen(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1", "p/a/1")
    assert list(checkers.delivered_twice(history, "s")) == ["s: p/a/1 was delivered twice"]


def test_messages_before_a_restored_checkpoint_may_come_again(history: ClientHistory) -> None:
    deliver(history, "p/a/0", "p/a/1", "p/a/2")
    taken = history.take_back("s", 1, "aside")
    assert [message.uid for message in taken] == ["p/a/1", "p/a/2"]
    deliver(history, "p/a/1")
    assert list(checkers.delivered_twice(history, "s")) == []
    history.receive("s", Delivered("p/a/2", "a", (9, 9, 9, -1), "c"))
    assert "is stored at" in next(checkers.stored_twice(history))


def test_a_layout_with_a_hole_is_seen(history: ClientHistory) -> None:
    good = Layout.initial(2, now_ms=0)
    history.layout(good)
    history.layout(Layout(1, good.next_id, {0: good.segments[0]}))
    assert any("end at" in wrong for wrong in checkers.bad_layouts(history))
