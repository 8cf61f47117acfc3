"""The witness of simulations: the behaviour that it must report, and the behaviour that it must accept."""

from __future__ import annotations

from collections import Counter

from anabranch.ledger.memory import MemoryStorage
from anabranch.metadata import records
from anabranch.metadata.layouts import with_layout
from anabranch.metadata.records import AssignedRecord, ConsumerRecord, SubscriptionRecord, TopicRecord
from anabranch.model.ids import Position
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.singles import build_single
from simulation.judges.checkers import ClientHistory
from simulation.judges.metadata_witness import WitnessSettings
from simulation.judges.wire_events import AckSeen, AttachSeen, RegistrationSeen, Watch
from simulation.judges.witness import Witness
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

TOPIC = TopicName.parse("topic://public/default/orders")
SUB = "s"
GRACE_S = 5.0


class Scene:
    """A topic of one segment with one log, and its witness."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.history = ClientHistory()
        self.storage = MemoryStorage()
        self.layout = Layout.initial(1, now_ms=0)
        self.witness = Witness(
            loop,
            self.history,
            Counter(),
            WitnessSettings(
                topic=TOPIC,
                ordered=frozenset([SUB]),
                grace_s=GRACE_S,
                log_of=self.storage.get,
                leads=lambda process: process is None,
                committed=lambda layout: None,
            ),
        )
        self.write_topic(term=1)

    @property
    def wrong(self) -> list[str]:
        self.witness.settle_doubts()
        return self.history.witnessed

    @property
    def segment(self) -> TopicName:
        return TOPIC.segment_name(self.layout.segments[0].range, 0)

    def write_topic(self, term: int) -> None:
        record = with_layout(TopicRecord(epoch=0, next_segment_id=0, segments={}, term=term), self.layout)
        self.witness.changed(records.topic_path(TOPIC), None, records.encode(record))

    def write_members(self, generation: int, term: int = 1, **held: tuple[int, ...]) -> None:
        consumers = {
            name: ConsumerRecord(
                generation=generation, segments=tuple(AssignedRecord(segment_id=id_) for id_ in ids)
            )
            for name, ids in held.items()
        }
        record = SubscriptionRecord(type="STREAM", consumers=consumers, generation=generation, term=term)
        self.witness.changed(records.subscription_path(TOPIC, SUB), None, records.encode(record))

    async def fill(self, count: int) -> None:
        await self.storage.open()
        log = await self.storage.create(str(self.segment))
        log.cursors.open(SUB, 0)
        for number in range(count):
            log.append(b"%d" % number, 1, 0, lambda place, error: None)
        await log.flush()

    def acknowledge(self, count: int) -> None:
        log = self.storage.get(str(self.segment))
        assert log is not None
        log.cursors[SUB].acknowledge_up_to(count)

    def attach(self, name: str) -> AttachSeen:
        consumer = AttachSeen(None, name, 1, name, SUB, self.segment, True, pb.CommandSubscribe.Exclusive)
        self.witness.attached(consumer)
        return consumer

    def dispatch(self, consumer: AttachSeen, entry: int) -> None:
        data = build_single(b"x", None, 0, "p", 1)
        self.witness.dispatched(consumer, Delivery(1, 1, entry, -1, 0, (), None, None, None, data))


async def test_a_segment_moves_when_what_its_reader_holds_is_acknowledged(loop: SimLoop) -> None:
    scene = Scene(loop)
    await scene.fill(3)
    scene.write_members(1, a=(0,))
    first = scene.attach("a")
    scene.dispatch(first, 0)
    scene.write_members(2, a=(), b=(0,))
    second = scene.attach("b")
    scene.acknowledge(1)
    scene.dispatch(second, 1)
    assert scene.wrong == []
    scene.dispatch(first, 2)
    assert any("of generation 1 was given 1:2 after b of generation 2" in text for text in scene.wrong)


async def test_a_segment_that_moves_while_entries_are_held_is_wrong_unless_their_holder_goes(
    loop: SimLoop,
) -> None:
    for goes in (True, False):
        scene = Scene(loop)
        await scene.fill(2)
        scene.write_members(1, a=(0,))
        first = scene.attach("a")
        scene.dispatch(first, 0)
        scene.write_members(2, b=(0,))
        scene.dispatch(scene.attach("b"), 0)
        if goes:
            scene.witness.detached(first)
        assert bool([text for text in scene.wrong if "while a on segment 0" in text]) == (not goes)


async def test_a_former_reader_acknowledges_no_message_of_its_successor(loop: SimLoop) -> None:
    scene = Scene(loop)
    await scene.fill(2)
    scene.write_members(1, a=(0,))
    first = scene.attach("a")
    scene.write_members(2, b=(0,))
    second = scene.attach("b")
    scene.dispatch(first, 0)
    scene.witness.detached(first)
    scene.dispatch(second, 0)
    scene.witness.acknowledging(first)
    scene.witness.acknowledged(first)
    assert scene.wrong == []
    scene.witness.acknowledging(first)
    scene.acknowledge(1)
    scene.witness.acknowledged(first)
    assert scene.wrong == ["s: a on segment 0 acknowledged 1:0, which b on segment 0 holds"]


async def test_an_entry_comes_no_more_after_its_acknowledgement_was_confirmed(loop: SimLoop) -> None:
    scene = Scene(loop)
    await scene.fill(2)
    consumer = scene.attach("a")
    scene.dispatch(consumer, 0)
    scene.witness.ack_confirmed(consumer, AckSeen((Position(1, 0),), cumulative=True))
    scene.dispatch(consumer, 1)
    assert scene.wrong == []
    scene.dispatch(consumer, 0)
    assert scene.wrong == ["s: 1:0 of segment 0 was sent after its ack was confirmed"]


def test_terms_generations_and_sent_epochs_never_fall(loop: SimLoop) -> None:
    scene = Scene(loop)
    scene.write_topic(term=3)
    scene.write_members(4, term=3)
    scene.write_members(1, term=4)
    watch = Watch("client", str(TOPIC), known=2)
    scene.witness.layout_sent(watch, 2)
    assert scene.wrong == []
    scene.write_topic(term=2)
    scene.write_members(9, term=3)
    scene.witness.layout_sent(watch, 1)
    assert scene.wrong == [
        "a leader of term 2 wrote the topic after one of term 3",
        "s: (term, generation) fell from (4, 1) to (3, 9)",
        "client was sent epoch 1 after epoch 2",
    ]


def test_a_member_is_evicted_after_a_whole_grace_period_without_a_connection(loop: SimLoop) -> None:
    def evicted_after(gone_s: float, *, leaves: bool = False) -> list[str]:
        scene = Scene(loop)
        scene.write_members(1, a=(0,))
        member = RegistrationSeen(None, "a", "a", SUB, TOPIC)
        scene.witness.registered(member, pb.ScalableConsumerAssignment(layout_epoch=0, generation=1))
        if leaves:
            scene.witness.leaving(member)
        elif gone_s >= 0:
            scene.witness.registration_lost(member)
            loop.advance(gone_s)
        scene.write_members(2)
        return scene.wrong

    assert evicted_after(GRACE_S) == []
    assert evicted_after(0, leaves=True) == []
    assert evicted_after(1.0) == ["s: a was evicted after 1.000 s, not 5 s"]
    assert evicted_after(-1) == ["s: a was evicted while it was connected"]


def test_a_consumer_of_a_relay_is_lost_when_the_relay_loses_the_leader(loop: SimLoop) -> None:
    def evicted_after(gone_s: float, lost: str) -> list[str]:
        scene = Scene(loop)
        scene.write_members(1, a=(0,))
        member = RegistrationSeen(SimProcess(loop, "relay"), "a", "a", SUB, TOPIC)
        scene.witness.registered(member, pb.ScalableConsumerAssignment(layout_epoch=0, generation=1))
        scene.witness.peer_lost(None, lost)
        loop.advance(gone_s)
        scene.write_members(2)
        return scene.wrong

    assert evicted_after(GRACE_S, "relay") == []
    assert evicted_after(1.0, "relay") == ["s: a was evicted after 1.000 s, not 5 s"]
    assert evicted_after(GRACE_S, "another") == ["s: a was evicted while it was connected"]


def test_a_segment_has_one_reader_unless_all_share_it(loop: SimLoop) -> None:
    scene = Scene(loop)
    scene.write_members(1, a=(0,), b=(0,))
    assert scene.wrong == ["s: segment 0 is given to a, b, not shared"]


def test_segments_are_dealt_out_again_only_with_a_cause(loop: SimLoop) -> None:
    scene = Scene(loop)
    scene.write_members(1, a=(0,), b=())
    scene.write_members(2, a=(), b=(0,))
    assert any("without a cause" in text for text in scene.wrong)


async def test_a_sealed_segment_keeps_its_end_and_a_layout_seals_what_is_sealed(loop: SimLoop) -> None:
    scene = Scene(loop)
    await scene.fill(2)
    scene.layout = scene.layout.split(0, now_ms=1)
    scene.write_topic(term=1)
    assert scene.wrong == ["epoch 1 seals segment 0, whose log is open"]
    log = scene.storage.get(str(scene.segment))
    assert log is not None
    log.append(b"more", 1, 0, lambda place, error: None)
    await log.flush()
    scene.witness.stored(TOPIC.segment_name(scene.layout.segments[1].range, 1), Position(9, 0))
    assert scene.wrong[1:] == [
        "segment 1 stored 9:0 while its parent 0 is open",
        "sealed segment 0 had 2 entries and has 3",
    ]
