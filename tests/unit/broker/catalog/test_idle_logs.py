"""Logs that are unloaded without clients, and loaded by their next use: nothing is lost, no counter falls."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.controller.decide.admission import Roster
from anabranch.errors import ServiceNotReadyError
from anabranch.model.names import Place, TopicName
from anabranch.protocol.commands import SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import Brokers
from tests.harness.segments import NAME, WHOLE, split_segment
from tests.harness.wire import TOPIC, WireClient, look_up, values_of

IDLE_S = 30.0
LOG = TopicName.parse(TOPIC)
SEGMENT = TopicName.parse(WHOLE)

pytestmark = pytest.mark.brokers(log_idle_s=IDLE_S, storage=SlowStorage)


async def publish(brokers: Brokers, *values: bytes, topic: str = TOPIC, first: int = 0) -> None:
    client = await brokers.connect()
    await client.producer(topic, producer_name="p")
    await client.publish_all(list(values), first=first)
    client.close()


async def consume(
    brokers: Brokers, count: int, topic: str = TOPIC, kind: int = pb.CommandSubscribe.Exclusive
) -> list[bytes]:
    """Receive and acknowledge messages as one consumer that leaves."""
    client = await brokers.connect()
    await client.subscribe(topic, kind=kind)
    found = await client.deliveries(count)
    await client.acknowledge_durably(*found)
    client.close()
    return values_of(found)


def loaded(brokers: Brokers, name: TopicName = LOG) -> ServedLog | None:
    return brokers[0].logs.loaded(name)


async def idle(brokers: Brokers, name: TopicName = LOG) -> None:
    """Wait until the log is unloaded."""
    await asyncio.sleep(2 * IDLE_S)
    assert loaded(brokers, name) is None


async def test_a_log_is_unloaded_when_its_last_client_is_gone_for_long(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await asyncio.sleep(10 * IDLE_S)
    assert loaded(brokers) is not None, "a client that sends nothing uses its log"
    client.close()
    await asyncio.sleep(IDLE_S / 2)
    assert loaded(brokers) is not None
    await idle(brokers)


async def test_messages_and_acknowledgements_outlast_an_unloading(brokers: Brokers) -> None:
    await publish(brokers, b"0", b"1", b"2")
    assert await consume(brokers, 2) == [b"0", b"1"]
    await idle(brokers)
    await publish(brokers, b"3", first=3)
    await idle(brokers)
    assert await consume(brokers, 2) == [b"2", b"3"]


async def test_a_repeated_message_is_recognised_after_an_unloading(brokers: Brokers) -> None:
    await publish(brokers, b"0", b"1")
    await idle(brokers)
    await publish(brokers, b"1", b"2", first=1)
    assert await consume(brokers, 3) == [b"0", b"1", b"2"]


async def test_counters_go_on_and_rates_do_not_jump(brokers: Brokers) -> None:
    await publish(brokers, b"0", b"1", b"2")
    await consume(brokers, 2)
    before = brokers[0].logs.require(LOG)
    totals, entries = before.totals(), before.entries_in
    out = before.subscriptions["sub"].counters.messages_out
    assert totals[0] == entries == 3
    await idle(brokers)
    kept = brokers[0].logs.kept(LOG)
    assert kept is not None
    assert kept.totals() == totals
    after = brokers[0].logs.require(LOG)
    assert after is not before
    assert (after.totals(), after.entries_in) == (totals, entries)
    assert after.subscriptions["sub"].counters.messages_out == out
    assert not any(after.rates())
    assert brokers[0].logs.kept(LOG) is None


async def test_the_type_of_a_subscription_and_its_roster_are_kept(brokers: Brokers) -> None:
    await publish(brokers, b"0")
    client = await brokers.connect()
    await client.subscribe(kind=pb.CommandSubscribe.Shared)
    client.close()
    roster = Roster(7, incarnation=3)
    brokers[0].logs.require(LOG).subscriptions["sub"].restrict(roster)
    await idle(brokers)
    found = brokers[0].logs.require(LOG).subscriptions["sub"]
    assert (found.kind, found.admitting) == (pb.CommandSubscribe.Shared, roster)
    found.restrict(Roster(6))
    assert found.admitting == roster, "a roster of an older generation changes nothing"


async def test_looks_of_the_leader_neither_load_a_log_nor_keep_it_loaded(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.subscribe(WHOLE)
    client.close()
    await publish(brokers, b"0", b"1", topic=WHOLE)
    await idle(brokers, SEGMENT)
    place, segments = Place(SEGMENT, 0), brokers[0].segments
    load = await segments.load(place)
    assert (load.backlog_messages, load.clients, load.msg_rate_in) == (2, 0, 0)
    assert load.size_bytes > 0
    assert await segments.backlog(place, "sub") == 2
    assert await segments.consumers(place, "sub") == 0
    assert loaded(brokers, SEGMENT) is None


async def test_a_sealed_log_is_unloaded_and_drained_later(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.subscribe(WHOLE)
    client.close()
    await publish(brokers, b"0", b"1", topic=WHOLE)
    await split_segment(brokers)
    await idle(brokers, SEGMENT)
    assert await consume(brokers, 2, WHOLE) == [b"0", b"1"]
    await asyncio.sleep(1)
    record = await brokers[0].records.load_subscription(TopicName.parse(NAME), "sub")
    assert record is not None
    assert record.drained == (0,)
    await idle(brokers, SEGMENT)


def parts_in_cycles() -> set[str]:
    """The kinds of broker objects that only the garbage collector would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = {type(found) for found in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return {kind.__qualname__ for kind in kinds if kind.__module__.startswith("anabranch.broker.serving")}


async def parts_left_by_an_unloaded_log(brokers: Brokers, kind: int) -> set[str]:
    await publish(brokers, b"0", b"1")
    await consume(brokers, 2, kind=kind)
    log = brokers[0].logs.require(LOG)
    watched = weakref.ref(log), weakref.ref(log.subscriptions["sub"])
    del log
    gc.collect()
    gc.disable()
    try:
        await idle(brokers)
        assert [reference() for reference in watched] == [None, None]
        return parts_in_cycles()
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
async def test_an_unloaded_log_is_freed_without_a_garbage_collection(brokers: Brokers, kind: str) -> None:
    number = pb.CommandSubscribe.SubType.Value(kind)
    # The broker of an earlier test may be given up meanwhile and leave its own parts, but only once.
    if await parts_left_by_an_unloaded_log(brokers, number):
        assert await parts_left_by_an_unloaded_log(brokers, number) == set()


async def test_a_call_that_waits_keeps_the_log(brokers: Brokers) -> None:
    await publish(brokers, b"0")
    log = brokers[0].logs.require(LOG)
    with log.use.call():
        await asyncio.sleep(3 * IDLE_S)
        assert loaded(brokers) is log
    await idle(brokers)


@pytest.mark.brokers(log_idle_s=0, load_report_interval_s=0.05, storage=SlowStorage)
async def test_requests_that_wait_for_the_disk_find_their_log_at_the_end(brokers: Brokers) -> None:
    """Every request begins on an idle log, and commits take longer than five looks at the idle logs."""
    clients = [await brokers.connect() for _ in range(4)]

    async def use(client: WireClient, number: int) -> None:
        for turn in range(20):
            await client.producer(producer_id=turn, producer_name=f"p{number}")
            client.publish(b"x", turn, producer_id=turn)
            assert isinstance(await client.receipt(), SendReceipt)
            await client.request(pb.CommandCloseProducer(producer_id=turn, request_id=0))
            await client.subscribe(subscription=f"s{number}", consumer_id=turn, permits=0)
            await client.request(pb.CommandCloseConsumer(consumer_id=turn, request_id=0))
            await asyncio.sleep(brokers.rng.uniform(0, 0.2))

    await asyncio.gather(*(use(client, number) for number, client in enumerate(clients)))
    assert brokers[0].logs.resumed > 0
    reader = await brokers.connect()
    await reader.subscribe(subscription="s0")
    assert len(await reader.deliveries(80)) == 80


async def test_a_log_that_is_deleted_while_unloaded_leaves_nothing_behind(brokers: Brokers) -> None:
    await publish(brokers, b"0")
    await idle(brokers)
    await brokers[0].logs.drop(LOG)
    assert brokers[0].logs.kept(LOG) is None
    assert loaded(brokers) is None
    await publish(brokers, b"1")
    assert brokers[0].logs.require(LOG).totals()[0] == 1


async def test_a_reference_without_a_call_is_refused_after_the_unloading(brokers: Brokers) -> None:
    await publish(brokers, b"0")
    stale = brokers[0].logs.require(LOG)
    await idle(brokers)
    fresh = brokers[0].logs.require(LOG)
    with pytest.raises(ServiceNotReadyError, match="loaded again"):
        await stale.subscription("s", durable=True, ordinal=0)
    assert fresh is brokers[0].logs.require(LOG)
