"""The history of a run, and functions that find violations in it: of order, loss, duplicates and layouts.

The test writes the history while events happen. A checker judges by explicit ids and by the order of events
in one process, never by time. Must not know how the system under test works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from anabranch.model.ids import Position
from anabranch.model.layout import Layout
from simulation.judges.layout_checks import check, check_step


class SendResult(Enum):
    """The sender's knowledge of a message: stored, certainly not stored, or neither."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    """One message of a sender; `number` counts per producer and key."""

    uid: str
    producer: str
    key: str
    number: int
    outcome: SendResult = SendResult.UNKNOWN
    place: tuple[int, ...] | None = None
    """The place in the receipt that the sender got."""
    damaged: bool = False
    """Whether its stored record was damaged; then it may be lost."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One delivery; `place` is the segment, ledger, entry and batch index of the stored message."""

    uid: str
    key: str
    place: tuple[int, ...]
    consumer: str


class Waiting(NamedTuple):
    """An entry that a subscription has not acknowledged; the set bits are its unacknowledged messages."""

    segment: int
    position: Position
    remaining: int | None


class Early(NamedTuple):
    """A delivery while an ancestor of its segment had unacknowledged entries."""

    subscription: str
    consumer: str
    segment: int
    position: Position
    waiting: tuple[Waiting, ...]


@dataclass(slots=True)
class ClientHistory:
    """The events of one run, as far as checkers need them."""

    sent: dict[str, Sent] = field(default_factory=dict)
    received: dict[str, list[Delivered]] = field(default_factory=dict)
    """By subscription, in the order of receipt over all its consumers."""
    acknowledged: dict[str, dict[str, None]] = field(default_factory=dict)
    """By subscription: messages whose acknowledgement was confirmed."""
    quiet: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By subscription: the numbers of received and acknowledged messages after all consumers had closed."""
    layouts: list[Layout] = field(default_factory=list)
    """Each published layout, once."""
    early: list[Early] = field(default_factory=list)
    witnessed: list[str] = field(default_factory=list)
    """Violations that a witness saw at the moment they happened."""
    rewound: set[str] = field(default_factory=set)
    """Subscriptions that seek back: acknowledgements meanwhile may count or not."""
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def send(self, producer: str, key: str) -> Sent:
        """Note a message before it is sent; its uid is the payload."""
        number = self._numbers.get((producer, key), 0)
        self._numbers[producer, key] = number + 1
        sent = Sent(f"{producer}/{key}/{number}", producer, key, number)
        self.sent[sent.uid] = sent
        return sent

    def receive(self, subscription: str, message: Delivered) -> None:
        """Note a delivery to an application."""
        self.received.setdefault(subscription, []).append(message)

    def take_back(self, subscription: str, count: int, aside: str) -> list[Delivered]:
        """Keep the first `count` deliveries; move the others to `aside` and return them.

        `stored_twice` still reads the moved ones: a restored reader must find each message at the same place.
        """
        received = self.received.get(subscription, [])
        taken, received[count:] = received[count:], []
        self.received.setdefault(aside, []).extend(taken)
        return taken

    def acknowledge(self, subscription: str, uids: Iterable[str]) -> None:
        """Note acknowledgements that the broker confirmed as durable."""
        if subscription not in self.rewound:
            self.acknowledged.setdefault(subscription, {}).update(dict.fromkeys(uids))

    def rewind(self, subscription: str) -> None:
        """Forget the acknowledgements of a subscription, because it seeks back."""
        self.rewound.add(subscription)
        self.acknowledged.pop(subscription, None)

    def note_quiet(self, subscription: str) -> None:
        """Note that all consumers are gone; later consumers start from the acknowledged state."""
        received, acknowledged = self.received.get(subscription, ()), self.acknowledged.get(subscription, ())
        self.quiet.setdefault(subscription, (len(received), len(acknowledged)))

    def layout(self, layout: Layout) -> None:
        """Note a published layout; a repetition counts once."""
        if not self.layouts or self.layouts[-1] != layout:
            self.layouts.append(layout)


def lost(history: ClientHistory, subscription: str) -> Iterator[str]:
    """Every confirmed message must have been received."""
    got = {message.uid for message in history.received.get(subscription, ())}
    for sent in history.sent.values():
        if sent.outcome is SendResult.OK and sent.uid not in got:
            yield f"{subscription}: lost {sent.uid}"


def invented(history: ClientHistory, subscription: str) -> Iterator[str]:
    """Every received message was sent with its key, and its sending did not certainly fail."""
    for message in history.received.get(subscription, ()):
        sent = history.sent.get(message.uid)
        if sent is None:
            yield f"{subscription}: {message.uid!r} was never sent"
        elif sent.key != message.key:
            yield f"{subscription}: {message.uid} came with key {message.key!r}"
        elif sent.outcome is SendResult.FAILED:
            yield f"{subscription}: {message.uid} was delivered although its sending failed"


def stored_twice(history: ClientHistory) -> Iterator[str]:
    """A message has one place, and a place holds one message, for every reader."""
    places: dict[str, tuple[int, ...]] = {}
    holders: dict[tuple[int, ...], str] = {}
    for sent in history.sent.values():
        if sent.place is not None:
            places[sent.uid] = sent.place
            holder = holders.setdefault(sent.place, sent.uid)
            if holder != sent.uid:
                yield f"{holder} and {sent.uid} both have a receipt for {sent.place}"
    for subscription, messages in history.received.items():
        for message in messages:
            place = places.setdefault(message.uid, message.place)
            if place != message.place:
                yield f"{subscription}: {message.uid} is stored at {place} and at {message.place}"
            holder = holders.setdefault(message.place, message.uid)
            if holder != message.uid:
                yield f"{subscription}: {message.place} held {holder}, then {message.uid}"


def out_of_order(history: ClientHistory, subscription: str) -> Iterator[str]:
    """First deliveries of one producer's key have rising numbers over all consumers.

    A damaged record may arrive later than the others, when the broker has repaired it.
    """
    highest: dict[tuple[str, str], int] = {}
    seen: set[str] = set()
    for message in history.received.get(subscription, ()):
        sent = history.sent.get(message.uid)
        if sent is None or sent.damaged or message.uid in seen:
            continue
        seen.add(message.uid)
        before = highest.get((sent.producer, sent.key), -1)
        if sent.number < before:
            yield f"{subscription}: {sent.uid} came after number {before} to {message.consumer}"
        highest[sent.producer, sent.key] = max(before, sent.number)


def skipped(history: ClientHistory, subscription: str) -> Iterator[str]:
    """A first delivery comes after all earlier confirmed messages of its key."""
    confirmed: dict[tuple[str, str], list[Sent]] = {}
    for sent in history.sent.values():
        if sent.outcome is SendResult.OK:
            confirmed.setdefault((sent.producer, sent.key), []).append(sent)
    got: set[str] = set()
    reached: dict[tuple[str, str], int] = {}
    for message in history.received.get(subscription, ()):
        received = history.sent.get(message.uid)
        if received is None or message.uid in got:
            continue
        got.add(message.uid)
        line = confirmed.get((received.producer, received.key), [])
        at = reached.get((received.producer, received.key), 0)
        while at < len(line) and line[at].number < received.number:
            if line[at].uid not in got:
                yield f"{subscription}: {received.uid} came before {line[at].uid}"
            at += 1
        reached[received.producer, received.key] = at


def opened_early(history: ClientHistory) -> Iterator[str]:
    """No message is delivered while an ancestor holds an unacknowledged message of its key (O3)."""
    keys: dict[tuple[int, Position], dict[int, str]] = {}
    for messages in history.received.values():
        for message in messages:
            segment, ledger, entry, index = message.place
            keys.setdefault((segment, Position(ledger, entry)), {})[index] = message.key
    for early in history.early:
        given = frozenset(keys.get((early.segment, early.position), {}).values())
        for waiting in early.waiting:
            for index, key in keys.get((waiting.segment, waiting.position), {}).items():
                counts = waiting.remaining is None or index < 0 or waiting.remaining >> index & 1
                if key in given and counts:
                    yield (
                        f"{early.subscription}: {early.consumer} was given {early.position} of segment "
                        f"{early.segment} while {waiting.position} of its ancestor {waiting.segment}, "
                        f"of the same key, was not acknowledged"
                    )


def repeated_after_ack(history: ClientHistory, subscription: str) -> Iterator[str]:
    """Later consumers receive no message whose acknowledgement was confirmed.

    Only deliveries after `note_quiet` count: before, a delivery may have crossed the confirmation.
    """
    if subscription not in history.quiet:
        return
    delivered, acknowledged = history.quiet[subscription]
    confirmed = frozenset(list(history.acknowledged.get(subscription, ()))[:acknowledged])
    for message in history.received.get(subscription, [])[delivered:]:
        if message.uid in confirmed:
            yield f"{subscription}: {message.uid} came again after its acknowledgement was confirmed"


def delivered_twice(history: ClientHistory, subscription: str) -> Iterator[str]:
    """A checkpoint consumer gets every message once, before a checkpoint or after restoring it (K1)."""
    seen: set[str] = set()
    for message in history.received.get(subscription, ()):
        if message.uid in seen:
            yield f"{subscription}: {message.uid} was delivered twice"
        seen.add(message.uid)


def bad_layouts(history: ClientHistory) -> Iterator[str]:
    """Each published layout is valid and follows from the layout before it."""
    for layout in history.layouts[:1]:
        yield from (f"epoch {layout.epoch}: {wrong}" for wrong in check(layout))
    for before, after in pairwise(history.layouts):
        yield from (f"epoch {before.epoch} to {after.epoch}: {wrong}" for wrong in check_step(before, after))


def violations(
    history: ClientHistory,
    *,
    ordered: Sequence[str],
    unordered: Sequence[str] = (),
    exact: Sequence[str] = (),
) -> list[str]:
    """Return all violations; the names are subscriptions, and `exact` ones are in `ordered` too."""
    found = [*history.witnessed, *bad_layouts(history), *stored_twice(history), *opened_early(history)]
    for subscription in ordered:
        found += out_of_order(history, subscription)
        found += skipped(history, subscription)
    for subscription in exact:
        found += delivered_twice(history, subscription)
    for subscription in [*ordered, *unordered]:
        found += lost(history, subscription)
        found += invented(history, subscription)
        found += repeated_after_ack(history, subscription)
    return found
