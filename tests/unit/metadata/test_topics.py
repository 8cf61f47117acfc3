"""Records of topics, subscriptions and lineages."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from anabranch.errors import ConflictError, NotAllowedError, TopicExistsError, TopicNotFoundError
from anabranch.metadata.layouts import with_layout
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.record_store import RECORD_BYTES_MAX
from anabranch.metadata.records import (
    ClassicTopicRecord,
    LineageRecord,
    SubscriptionRecord,
    TopicRecord,
)
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from tests.fakes.metadata import YieldingStore

NAME = TopicName.parse("topic://public/default/orders/eu")
PLAIN = with_layout(TopicRecord(epoch=0, next_segment_id=0, segments={}), Layout.initial(1, now_ms=0))


@pytest.fixture
def topics() -> TopicStore:
    return TopicStore(MemoryStore())


async def test_a_topic_is_created_once(topics: TopicStore) -> None:
    await topics.create(NAME, PLAIN)
    assert await topics.load(NAME) == PLAIN
    with pytest.raises(TopicExistsError, match="orders/eu"):
        await topics.create(NAME, PLAIN)


async def test_a_record_is_decoded_once_and_read_anew_whenever_it_changed(topics: TopicStore) -> None:
    other = TopicStore(topics.store)
    await topics.create(NAME, PLAIN)
    first = await topics.load(NAME)
    assert await topics.load(NAME) is first
    for term in (1, 2):
        await other.update(NAME, lambda record, to=term: msgspec.structs.replace(record, term=to))  # type: ignore[misc]
        assert (await topics.load(NAME)).term == term
    await other.delete(NAME, PLAIN.incarnation)
    assert await topics.find(NAME) is None
    await other.create(NAME, msgspec.structs.replace(PLAIN, term=7))
    assert (await topics.load(NAME)).term == 7


async def test_updates_that_race_all_take_effect(topics: TopicStore) -> None:
    await topics.create(NAME, PLAIN)
    slow = TopicStore(YieldingStore(topics.store))

    async def add(key: str) -> None:
        def change(record: TopicRecord) -> TopicRecord:
            return msgspec.structs.replace(record, properties={**record.properties, key: ""})

        await slow.update(NAME, change)

    await asyncio.gather(*(add(f"{n}") for n in range(20)))
    assert len((await topics.load(NAME)).properties) == 20


async def test_an_update_that_changes_nothing_writes_nothing(topics: TopicStore) -> None:
    await topics.create(NAME, PLAIN)
    await topics.update(NAME, lambda record: record)
    stored = await topics.store.get("/topics/public/default/orders%2Feu")
    assert stored is not None
    assert stored.version == 0


async def test_a_topic_whose_deletion_began_is_not_found(topics: TopicStore) -> None:
    with pytest.raises(TopicNotFoundError):
        await topics.load(NAME)
    await topics.create(NAME, msgspec.structs.replace(PLAIN, deleted=True))
    with pytest.raises(TopicNotFoundError):
        await topics.load(NAME)
    with pytest.raises(TopicNotFoundError):
        await topics.update(NAME, lambda record: record)
    assert await topics.list("public/default") == ()
    assert await topics.find(NAME) is not None


async def test_deleting_a_topic_leaves_nothing_below_it(topics: TopicStore) -> None:
    await topics.create(NAME, PLAIN)
    neighbour = TopicName.parse("topic://public/default/orders")
    await topics.create(neighbour, PLAIN)
    for sub in ("a", "b/c"):
        await topics.update_subscription(NAME, sub, lambda _: SubscriptionRecord(type="QUEUE"))
    assert sorted(await topics.load_subscriptions(NAME)) == ["a", "b/c"]
    await topics.delete(NAME, incarnation=PLAIN.incarnation + 1)
    assert await topics.find(NAME) == PLAIN
    await topics.delete(NAME, PLAIN.incarnation)
    await topics.delete(NAME, PLAIN.incarnation)
    assert await topics.store.children("/topics/public/default") == ["orders"]
    assert await topics.list("public/default") == (neighbour,)


async def test_a_late_deletion_of_a_topic_spares_its_successor(topics: TopicStore) -> None:
    async def register(by: TopicStore, sub: str, term: int) -> None:
        await by.update_subscription(NAME, sub, lambda _: SubscriptionRecord(type="QUEUE", term=term))

    class Late(MemoryStore):
        """Pauses after it has read the record, until another process has made the topic again."""

        async def children(self, path: str) -> list[str]:
            if (await topics.load(NAME)).incarnation == PLAIN.incarnation:
                await topics.delete(NAME, PLAIN.incarnation)
                await topics.create(NAME, msgspec.structs.replace(PLAIN, incarnation=7, term=7))
                await register(topics, "s", 8)
            return await super().children(path)

    assert isinstance(topics.store, MemoryStore)
    await topics.create(NAME, PLAIN)
    await register(topics, "s", PLAIN.term)
    await register(topics, "t", PLAIN.term)
    await TopicStore(Late(topics.store.tree)).delete(NAME, PLAIN.incarnation)
    assert (await topics.load(NAME)).incarnation == 7
    assert list(await topics.load_subscriptions(NAME)) == ["s"]


async def test_subscriptions_are_registered_changed_and_forgotten(topics: TopicStore) -> None:
    def register(found: SubscriptionRecord | None) -> SubscriptionRecord:
        assert found is None
        return SubscriptionRecord(type="STREAM")

    await topics.update_subscription(NAME, "s", register)
    loaded = await topics.load_subscription(NAME, "s")
    assert loaded == SubscriptionRecord(type="STREAM")

    def refuse(_: SubscriptionRecord) -> None:
        raise ConflictError("not now")

    with pytest.raises(ConflictError):
        await topics.delete_subscription(NAME, "s", refuse)
    assert await topics.load_subscription(NAME, "s") is not None
    for _ in range(2):
        await topics.delete_subscription(NAME, "s", lambda _: None)
    assert await topics.load_subscription(NAME, "s") is None


async def test_a_lineage_outlives_its_topic(topics: TopicStore) -> None:
    assert await topics.load_lineage(NAME) == LineageRecord()
    await topics.create(NAME, PLAIN)
    await topics.update_lineage(NAME, lambda found: msgspec.structs.replace(found, next_segment_id=7))
    await topics.delete(NAME, PLAIN.incarnation)
    assert (await topics.load_lineage(NAME)).next_segment_id == 7
    assert await topics.namespaces_with_topics() == ("public/default",)
    ((name, lineage),) = await topics.load_lineages("public/default")
    assert (name, lineage.next_segment_id) == (NAME, 7)


async def test_incarnations_never_repeat(topics: TopicStore) -> None:
    assert [await topics.next_incarnation() for _ in range(3)] == [0, 1, 2]


async def test_classic_topics_are_kept_apart_from_scalable_ones(topics: TopicStore) -> None:
    name = TopicName.parse("persistent://public/default/orders")
    await topics.create_classic(name, ClassicTopicRecord(partitions=3))
    with pytest.raises(TopicExistsError):
        await topics.create_classic(name, ClassicTopicRecord())
    await topics.update_classic(name, lambda found: msgspec.structs.replace(found, partitions=5))
    assert await topics.find_classic(name) == ClassicTopicRecord(partitions=5)
    assert await topics.list_classic("public/default") == (name,)
    assert await topics.list("public/default") == ()
    await topics.delete_classic(name)
    with pytest.raises(TopicNotFoundError):
        await topics.update_classic(name, lambda found: found)


async def test_a_record_that_is_too_large_is_refused_and_the_old_one_stays() -> None:
    topics = TopicStore(MemoryStore())
    name = TopicName.parse("topic://public/default/large")
    huge = {str(number): "x" * 1000 for number in range(RECORD_BYTES_MAX // 1000)}
    record = TopicRecord(epoch=0, next_segment_id=0, segments={})
    with pytest.raises(NotAllowedError, match="at most"):
        await topics.create(name, msgspec.structs.replace(record, properties=huge))
    await topics.create(name, record)
    with pytest.raises(NotAllowedError, match="at most"):
        await topics.update(name, lambda found: msgspec.structs.replace(found, properties=huge))
    assert await topics.load(name) == record
