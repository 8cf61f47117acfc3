"""One suite for the engine port: what every engine promises to leaders, clients and migrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.engine.port import Engine
from anabranch.broker.wire.handlers import HANDLERS, handlers_for
from anabranch.errors import NotAllowedError, TopicNotFoundError
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import FULL
from simulation.cluster.pulsar import SimTopic
from simulation.world.loop import SimLoop
from tests.harness.cluster import Brokers
from tests.harness.control_plane import ControlProcesses

NAME = TopicName.parse("topic://public/default/orders")
CLASSIC = TopicName.parse("persistent://public/default/classic")
MISSING = TopicName.parse("persistent://public/default/missing")
TERM = 99
"""Later than the term of any leader in these tests."""
SINK = TopicName.parse("persistent://public/default/__sink-daily-rows")


class EngineHost:
    """A broker with one engine, and a way to create a classic topic there."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def broker(self) -> Broker:
        return self._brokers[0]

    @property
    def engine(self) -> Engine:
        return self.broker.engine

    async def create_classic(self, name: TopicName) -> None:
        if isinstance(self._brokers, ControlProcesses):
            self._brokers.pulsar.found[name] = SimTopic()
        else:
            await self.broker.classic.create(name)

    async def create_scalable(self) -> Layout:
        await self.broker.controllers.create_topic(NAME)
        return self.broker.controllers.layouts()[NAME]


@pytest.fixture(params=[Brokers, ControlProcesses])
async def host(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[EngineHost]:
    brokers = request.param(loop)
    await brokers.start_all()
    yield EngineHost(brokers)
    await brokers.stop_all()


@pytest.fixture
def engine(host: EngineHost) -> Engine:
    return host.engine


async def test_clients_attach_to_a_segment_by_the_name_and_at_the_address_that_layouts_tell(
    host: EngineHost, engine: Engine
) -> None:
    (segment,) = (await host.create_scalable()).segments.values()
    name = NAME.segment_name(segment.range, segment.id)
    changed = asyncio.Event()
    undo = engine.watch(changed.set)
    located = engine.locate(NAME, segment)
    if located.address is None:
        await changed.wait()
        located = engine.locate(NAME, segment)
    undo()
    assert located.address == await engine.address(name)
    assert located.address.url
    assert (located.topic or str(name)) == engine.topic_of(str(name))
    assert located.keeps_range == (located.topic is not None)


async def test_a_classic_segment_keeps_the_name_of_its_topic(engine: Engine) -> None:
    located = engine.locate(NAME, Segment(0, FULL, legacy_topic=str(CLASSIC)))
    assert located.topic == str(CLASSIC)
    assert not located.keeps_range
    assert engine.topic_of(str(CLASSIC)) == str(CLASSIC)


async def test_the_segments_of_the_port_are_those_that_leaders_create(
    host: EngineHost, engine: Engine
) -> None:
    (segment,) = (await host.create_scalable()).segments.values()
    place = Place(NAME.segment_name(segment.range, segment.id), segment.store)
    assert engine.is_sound(place)
    assert await engine.segments.create(place, {}, TERM) == "open"


async def test_a_process_that_runs_may_answer_for_its_topics(engine: Engine) -> None:
    engine.check_right()


async def test_a_missing_topic_has_no_partitions(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        await engine.partitions(MISSING, create=False)
    assert await engine.partitions_to_watch(MISSING, create=False) == 0


async def test_a_plain_topic_has_no_partitions_and_an_address(host: EngineHost, engine: Engine) -> None:
    await host.create_classic(CLASSIC)
    assert await engine.partitions(CLASSIC, create=True) == 0
    assert await engine.partitions_to_watch(CLASSIC, create=True) == 0
    assert (await engine.address(CLASSIC)).url


async def test_classic_topics_are_listed_without_segments(host: EngineHost, engine: Engine) -> None:
    await host.create_classic(CLASSIC)
    await host.create_scalable()
    assert list(await engine.topics("public/default", ("persistent",))) == [CLASSIC]


async def test_the_log_of_a_sink_can_be_created_and_other_names_are_left_alone(
    host: EngineHost, engine: Engine
) -> None:
    for _ in range(2):
        await engine.ensure_sink_log(SINK, host.broker.classic.may_create)
        await engine.ensure_sink_log(MISSING, host.broker.classic.may_create)
    assert MISSING not in await engine.topics("public/default", ("persistent",))


async def test_an_unused_subscription_may_be_deleted_and_a_seek_to_an_entry_is_allowed(
    host: EngineHost, engine: Engine
) -> None:
    (segment,) = (await host.create_scalable()).segments.values()
    place = Place(NAME.segment_name(segment.range, segment.id), segment.store)
    await engine.check_unused([place], "sub")
    engine.check_seek(())


async def test_an_engine_that_does_not_share_segments_refuses_other_buckets(engine: Engine) -> None:
    if engine.traits.shares_segments:
        engine.check_rebucket()
    else:
        with pytest.raises(NotAllowedError):
            engine.check_rebucket()


async def test_refused_commands_have_handlers_that_refuse_and_all_others_stay(engine: Engine) -> None:
    traits = engine.traits
    handlers = handlers_for(traits)
    assert handlers.keys() == HANDLERS.keys()
    assert {command for command in HANDLERS if handlers[command] is not HANDLERS[command]} == traits.refused
    assert traits.features.supports_scalable_topics
    assert traits.server_version.startswith("Anabranch")
