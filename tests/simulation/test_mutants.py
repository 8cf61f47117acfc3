"""Deliberately broken builds: each must make a judge of the simulation report a violation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import ModuleType
from typing import Any

import msgspec
import pytest

from anabranch.aio import Backoff
from anabranch.broker.catalog import idle_logs
from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.engine.local_segments import LocalSegments
from anabranch.broker.serving.delivery import log_reader
from anabranch.broker.serving.log import entry_checks
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.acknowledging import LogAcknowledgements
from anabranch.broker.serving.subscription.kept import KeptLog
from anabranch.broker.wire.handlers import layout_watch
from anabranch.broker.wire.handlers.register import AssignmentPush
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.client.net.topics import registration
from anabranch.client.net.topics.layout_watch import TopicLayout, look_up_layout
from anabranch.client.options import Batching
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.controller.decide import groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import Push
from anabranch.controller.topic import leadership
from anabranch.controller.topic.leadership import ControllerSettings
from anabranch.controller.topic.members import Members
from anabranch.errors import DamagedEntriesError, HeldError
from anabranch.ledger import cursors, replaying, space
from anabranch.ledger.disk import Write
from anabranch.ledger.file_log import FileLog
from anabranch.ledger.format.commits import PartAcked, Step
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import StoredSequences
from anabranch.metadata.records import InitialPosition, TopicRecord
from anabranch.model import assignment, drains
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import Parts, Ranges
from anabranch.model.inheritance import Pieces
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import Place
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.runs.shape import DiskFaults
from simulation.world.disk import SimDisk
from tests.harness.mutants import QUIET, assert_caught, favour

UNCACHED = StorageLimits(cache_bytes=0, journal_bytes_max=2000, ledger_bytes_max=500, behind_bytes=1)


def acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    favour(patch, workers=1, kills=4)
    honest = SimDisk.append

    async def append(self: SimDisk, writes: Sequence[Write], *, sync: bool = False) -> None:
        await honest(self, writes, sync=False)

    patch.setattr(SimDisk, "append", append)


def replace_everywhere(patch: pytest.MonkeyPatch, name: str, function: object, *modules: ModuleType) -> None:
    """Replace a function in each module that has it under its name."""
    for module in modules:
        if hasattr(module, name):
            patch.setattr(module, name, function)


def open_children_before_their_parents_are_drained(patch: pytest.MonkeyPatch) -> None:
    def open_slots(
        layout: Layout, drained: frozenset[int], parts: Parts = drains.NO_PARTS
    ) -> dict[int, Ranges]:
        return dict.fromkeys(layout.segments, drains.ALL)

    replace_everywhere(patch, "open_slots", open_slots, drains, assignment, groups)


def forget_what_was_stored_of_each_producer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileLog, "sequences", StoredSequences({}, ()))


def let_children_inherit_nothing(patch: pytest.MonkeyPatch) -> None:
    chosen = {"operations": 4, "sender_deaths": 3, "in_flight_max": 1000, "messages": 60}
    favour(patch, **chosen, liars=0, intruders=0)

    async def inherit(self: LocalSegments, place: Place, pieces: Pieces, term: int) -> None:
        return None

    patch.setattr(LocalSegments, "inherit", inherit)


def check_direct_parents_only(patch: pytest.MonkeyPatch) -> None:
    """Open children when their parents are drained, without regard to older ancestors."""
    favour(patch, **QUIET, operations=4, messages=60, consumers=4, segments=1, workers=1)

    def open_slots(
        layout: Layout, drained: frozenset[int], parts: Parts = drains.NO_PARTS
    ) -> dict[int, Ranges]:
        found = {}
        for id_, segment in layout.segments.items():
            found[id_] = drains.ALL
            for parent in segment.parents:
                passed = drains.ALL if parent in drained else parts.get(parent, ())
                found[id_] = drains.intersection(found[id_], passed)
        return found

    replace_everywhere(patch, "open_slots", open_slots, drains, assignment, groups)


def forget_a_subscription_on_one_child(patch: pytest.MonkeyPatch) -> None:
    honest = LocalSegments.create

    async def create(
        self: LocalSegments, place: Place, subscriptions: Mapping[str, InitialPosition], term: int
    ) -> None:
        assert place.name.segment is not None
        await honest(self, place, {} if place.name.segment.id % 2 else subscriptions, term)

    patch.setattr(LocalSegments, "create", create)


def forget_which_messages_of_an_entry_were_acknowledged(patch: pytest.MonkeyPatch) -> None:
    batching = Batching(max_delay=0.01, max_messages=50, max_bytes=100_000)
    favour(patch, queue_consumers=2, ack_receipts=True, retention_s=1e6, batching=batching, forgetful=True)

    def replay_whole_entries(cursor: cursors.Cursor, steps: Iterable[Step]) -> None:
        cursors.replay(cursor, (step for step in steps if not isinstance(step, PartAcked)))

    patch.setattr(replaying, "replay", replay_whole_entries)


def leave_the_entry_at_hand_out_of_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    favour(patch, checkpoints=True, retention_s=1e6)

    def checkpoint(self: ReadPositions, *_: object) -> Checkpoint:
        return Checkpoint(dict(self.positions))

    patch.setattr(ReadPositions, "checkpoint", checkpoint)


def lead_in_a_term_that_was_over(patch: pytest.MonkeyPatch) -> None:
    def raise_term(record: TopicRecord) -> TopicRecord:
        return msgspec.structs.replace(record, term=record.term - 1 if record.term > 2 else record.term + 1)

    patch.setattr(leadership, "raise_term", raise_term)


def commit_a_layout_without_sealing_the_parents(patch: pytest.MonkeyPatch) -> None:
    async def seal(self: FileLog) -> None:
        return None

    patch.setattr(FileLog, "seal", seal)


def strike_garbage_off_without_deleting_it(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: LocalSegments, place: Place, term: int) -> None:
        return None

    patch.setattr(LocalSegments, "delete", delete)


def tell_an_old_epoch_now_and_then(patch: pytest.MonkeyPatch) -> None:
    honest = layout_watch.dag_of
    calls = count()

    def dag_of(layout: Layout, *args: Any, **options: Any) -> pb.ScalableTopicDAG:
        dag = honest(layout, *args, **options)
        if next(calls) % 3 == 2 and dag.epoch:
            dag.epoch -= 1
        return dag

    patch.setattr(layout_watch, "dag_of", dag_of)


def evict_before_the_grace_period_is_over(patch: pytest.MonkeyPatch) -> None:
    favour(patch, **QUIET, consumer_deaths=2, consumer_pauses=2, consumers=4, messages=40, busy_s=2.0)
    honest = Members.__init__

    def init(self: Members, settings: ControllerSettings, *args: Any) -> None:
        halved = dataclasses.replace(settings, consumer_grace_s=settings.consumer_grace_s / 2)
        honest(self, halved, *args)

    patch.setattr(Members, "__init__", init)


def take_who_registers_through_another_broker_for_lost(patch: pytest.MonkeyPatch) -> None:
    favour(patch, workers=3, consumers=4)

    async def look_up_without_the_leader(*args: Any, **options: Any) -> TopicLayout:
        return dataclasses.replace(await look_up_layout(*args, **options), controller_url=None)

    patch.setattr(registration, "look_up_layout", look_up_without_the_leader)
    honest = Members.join

    def join(self: Members, sub: str, name: str, push: Push, request: RegistrationRequest) -> int:
        token = honest(self, sub, name, push, request)
        if not isinstance(push, AssignmentPush):
            self.lost(token)
        return token

    patch.setattr(Members, "join", join)


def give_everybody_every_segment(patch: pytest.MonkeyPatch) -> None:
    honest = assignment.assign

    def assign(*args: Any, **options: Any) -> dict[str, tuple[assignment.Assigned, ...]]:
        given = honest(*args, **options)
        everything = tuple(assignment.Assigned(one.segment) for each in given.values() for one in each)
        return dict.fromkeys(given, everything)

    replace_everywhere(patch, "assign", assign, assignment, groups)


def deal_the_segments_out_anew_each_time(patch: pytest.MonkeyPatch) -> None:
    turns = count()
    honest = assignment.assign

    def assign(layout: Layout, names: Sequence[str], *args: Any, **options: Any) -> Any:
        given = honest(layout, names, *args, **options)
        turn = next(turns)
        ordered = sorted(given)
        return {name: given[ordered[(at + turn) % len(ordered)]] for at, name in enumerate(ordered)}

    replace_everywhere(patch, "assign", assign, assignment, groups)


def give_a_bucket_away_while_its_entries_are_held(patch: pytest.MonkeyPatch) -> None:
    def target(self: KeyedDispatch, slot: int) -> Receiver | None:
        return self._selector.owner(slot)

    patch.setattr(KeyedDispatch, "target", target)


def confirm_acknowledgements_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    favour(patch, workers=1, kills=4, ack_receipts=True)

    async def flush(self: cursors.DurableCursor, *, patient: bool = False) -> None:
        return None

    patch.setattr(cursors.DurableCursor, "flush", flush)


def take_a_store_without_ending_its_holder(patch: pytest.MonkeyPatch) -> None:
    favour(patch, workers=2, pauses=3, lease_s=0.5)

    async def lock(self: SimDisk, name: str = "", fence: str | None = None) -> None:
        await self._work()
        holder = self._platter.holder
        if holder is not None and holder.alive and self._platter.holder_name != fence:
            raise HeldError("the store is in use", self._platter.holder_name)
        self._platter.holder, self._platter.holder_name = self._process, name

    patch.setattr(SimDisk, "lock", lock)


def let_messages_overtake_those_of_a_sealed_segment(patch: pytest.MonkeyPatch) -> None:
    # Slow syncs make a seal take long, so that many messages wait for the successors.
    slow = DiskFaults(slow=True)
    small = {"keys": 5, "producers": 1, "consumers": 1, "workers": 1, "messages": 150, "busy_s": 1.0}
    favour(patch, **QUIET, **small, in_flight_max=1000, operations=4, disk=slow)
    honest = SegmentRoutes.holder

    def holder(self: SegmentRoutes, target: Segment, slot: int) -> SegmentProducer:
        leaving, self._leaving = self._leaving, []
        try:
            return honest(self, target, slot)
        finally:
            self._leaving = leaving

    patch.setattr(SegmentRoutes, "holder", holder)


def link_a_merged_segment_to_one_parent_only(patch: pytest.MonkeyPatch) -> None:
    honest = Layout.merge

    def merge(self: Layout, *args: Any, **options: Any) -> Layout:
        made = honest(self, *args, **options)
        segments = {
            id_: segment
            if id_ in self.segments
            else dataclasses.replace(segment, parents=segment.parents[:1])
            for id_, segment in made.segments.items()
        }
        return dataclasses.replace(made, segments=segments)

    patch.setattr(Layout, "merge", merge)


def store_whatever_a_producer_claims(patch: pytest.MonkeyPatch) -> None:
    favour(patch, liars=4, workers=1, messages=30)
    patch.setattr(entry_checks, "fault_in_count", lambda metadata, payload_bytes: None)


def keep_an_entry_that_cannot_be_decoded_unacknowledged(patch: pytest.MonkeyPatch) -> None:
    favour(patch, liars=4, operations=4, queue_consumers=0, workers=1, messages=30, busy_s=0.5)
    patch.setattr(BadEntryRecord, "add", lambda self, entry, problem, topic, number: None)


def never_read_again_after_a_failed_read(patch: pytest.MonkeyPatch) -> None:
    favour(patch, disk=DiskFaults(failed_reads=4), workers=1, messages=30, limits=UNCACHED)
    patch.setattr(log_reader, "RETRIES", Backoff(1e6, 1e6))


def stay_full_although_the_disk_has_room_again(patch: pytest.MonkeyPatch) -> None:
    favour(patch, disk=DiskFaults(full=3), workers=1, messages=60, pause_s=0.03)
    patch.setattr(space, "is_full", lambda free, owed, levels, *, was_full: was_full or free < levels.stop)


def pass_over_more_than_the_damaged_entry(patch: pytest.MonkeyPatch) -> None:
    favour(patch, disk=DiskFaults(damaged=10), workers=1, limits=UNCACHED, seeks=2)
    honest = LogAcknowledgements.pass_damaged

    def pass_damaged(self: LogAcknowledgements, error: DamagedEntriesError, counters: Any) -> list[int]:
        error.end += 3
        return honest(self, error, counters)

    patch.setattr(LogAcknowledgements, "pass_damaged", pass_damaged)


def serve_a_log_twice_after_an_unloading_under_its_consumers(patch: pytest.MonkeyPatch) -> None:
    favour(patch, workers=1, consumers=4, consumer_leaves=3, consumer_deaths=2, messages=100)

    def keep_serving(self: ServedLog) -> KeptLog:
        return KeptLog(self.store, 0, 0, 0, 0, 0, ())

    patch.setattr(ServedLog, "unload", keep_serving)
    patch.setattr(idle_logs, "may_unload", lambda seen, idle_s: not seen.closed)


CAUGHT: list[tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = [
    # D1, D3
    (acknowledge_before_fsync, ("lost", "held")),
    # A2
    (forget_what_was_stored_of_each_producer, ("is stored at",)),
    (let_children_inherit_nothing, ("is stored at",)),
    # O1
    (let_messages_overtake_those_of_a_sealed_segment, ("came after number",)),
    # O2
    (open_children_before_their_parents_are_drained, ("came after number",)),
    (check_direct_parents_only, ("came after number", "came before")),
    # O3
    (open_children_before_their_parents_are_drained, ("of the same key, was not acknowledged",)),
    # W1
    (give_everybody_every_segment, ("not shared",)),
    # W2
    (take_a_store_without_ending_its_holder, ("while", "held", "is stored at", "lost")),
    # W3
    (give_a_bucket_away_while_its_entries_are_held, ("while",)),
    (serve_a_log_twice_after_an_unloading_under_its_consumers, ("while",)),
    # L1
    (link_a_merged_segment_to_one_parent_only, ("does not name it as a parent",)),
    # L2
    (commit_a_layout_without_sealing_the_parents, ("whose log is open",)),
    # L3
    (forget_a_subscription_on_one_child, ("lacks the subscription",)),
    # L4
    (strike_garbage_off_without_deleting_it, ("belongs to no segment",)),
    # L5
    (lead_in_a_term_that_was_over, ("wrote the topic after", "(term, generation) fell")),
    # L6
    (tell_an_old_epoch_now_and_then, ("was sent epoch", "knows epoch")),
    # R1
    (evict_before_the_grace_period_is_over, ("was evicted after",)),
    (take_who_registers_through_another_broker_for_lost, ("was evicted while it was connected",)),
    (deal_the_segments_out_anew_each_time, ("without a cause",)),
    # C1
    (forget_which_messages_of_an_entry_were_acknowledged, ("came again after",)),
    (confirm_acknowledgements_before_they_are_durable, ("after its ack was confirmed",)),
    # Q1
    (store_whatever_a_producer_claims, ("although it can see the lie",)),
    (keep_an_entry_that_cannot_be_decoded_unacknowledged, ("not healed",)),
    (never_read_again_after_a_failed_read, ("not healed",)),
    (stay_full_although_the_disk_has_room_again, ("not healed",)),
    (pass_over_more_than_the_damaged_entry, ("lost", "not healed")),
    # K1
    (leave_the_entry_at_hand_out_of_a_checkpoint, ("was delivered twice",)),
]


@pytest.mark.parametrize(("mutate", "symptoms"), CAUGHT)
def test_a_broken_build_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], symptoms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert_caught(*symptoms)
