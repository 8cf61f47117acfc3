"""Acknowledgements, until the broker has confirmed them."""

from __future__ import annotations

from itertools import count

from anabranch.client.decide.consuming import acknowledgements
from anabranch.client.decide.consuming.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.protocol.claims import ENTRY_MESSAGES_MAX
from anabranch.protocol.limits import COMMAND_BYTES_MAX, check
from anabranch.protocol.pb import pulsar_pb2 as pb

CONSUMER = 3


def places(command: pb.CommandAck) -> list[LedgerEntry]:
    return [(id_.ledgerId, id_.entryId) for id_ in command.message_id]


def test_an_acknowledgement_counts_until_its_answer_came() -> None:
    acks, ids = Acknowledgements(), count(1)
    acks.add((1, 5), 0b100)
    assert acks.pending((1, 5)) == 0b100
    (command,) = acks.take(CONSUMER, ids.__next__)
    assert acks.pending((1, 5)) == 0b100
    assert not acks.confirmed
    acks.answered(command.request_id)
    assert acks.confirmed
    assert acks.pending((1, 5)) == -1


def test_two_commands_for_one_entry_both_need_an_answer() -> None:
    acks, ids = Acknowledgements(), count(1)
    acks.add((1, 5), 0b110)
    (first,) = acks.take(CONSUMER, ids.__next__)
    acks.add((1, 5), 0b101)
    (second,) = acks.take(CONSUMER, ids.__next__)
    acks.answered(first.request_id)
    assert acks.pending((1, 5)) == 0b100
    acks.answered(second.request_id)
    assert acks.pending((1, 5)) == -1


def test_unanswered_acknowledgements_are_sent_again_after_a_lost_connection() -> None:
    acks, ids = Acknowledgements(), count(1)
    acks.add((1, 5), 0)
    acks.add_up_to(1, 2, 0)
    taken = acks.take(CONSUMER, ids.__next__)
    acks.take_back()
    assert not any(acks.awaits(command.request_id) for command in taken)
    again = acks.take(CONSUMER, ids.__next__)
    assert [places(command) for command in again] == [[(1, 2)], [(1, 5)]]


def test_the_newest_position_replaces_an_unanswered_one() -> None:
    acks, ids = Acknowledgements(), count(1)
    acks.add_up_to(1, 2, 0)
    acks.take(CONSUMER, ids.__next__)
    acks.add_up_to(1, 7, 0)
    acks.take_back()
    acks.add_up_to(1, 4, 0)
    assert [places(command) for command in acks.take(CONSUMER, ids.__next__)] == [[(1, 7)]]


def test_a_command_holds_a_bounded_number_of_entries() -> None:
    acks, ids = Acknowledgements(), count(1)
    for entry in range(acknowledgements.IDS_MAX + 1):
        acks.add((1, entry), 0)
    assert [len(command.message_id) for command in acks.take(CONSUMER, ids.__next__)] == [1000, 1]


def test_commands_with_large_ack_sets_fit_the_limit_of_the_broker() -> None:
    acks, ids = Acknowledgements(), count(1)
    for entry in range(40):
        acks.add((1, entry), (1 << ENTRY_MESSAGES_MAX) - 2)
    commands = acks.take(7, lambda: next(ids))
    assert sum(len(command.message_id) for command in commands) == 40
    for command in commands:
        check(command)
        assert command.ByteSize() < COMMAND_BYTES_MAX


def test_each_entry_is_sent_once_however_many_wait() -> None:
    acks, ids = Acknowledgements(), count(1)
    for entry in range(2500):
        acks.add((1, entry), 0)
    sent = [[id_.entryId for id_ in command.message_id] for command in acks.take(7, lambda: next(ids))]
    assert [len(part) for part in sent] == [1000, 1000, 500]
    assert [entry for part in sent for entry in part] == list(range(2500))
