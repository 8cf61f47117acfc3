"""REST and the wire accept the same names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from anabranch.errors import InvalidNameError, LimitExceededError
from anabranch.model.limits import ENTITY_BYTES_MAX, LOCAL_BYTES_MAX, NAME_BYTES_MAX, PROPERTIES_MAX
from anabranch.model.names import TopicName, validate_client_name
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.loop import SimLoop
from tests.harness.admin import CLASSIC, ORDERS, Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import SCALABLE_TOPIC, WireClient, look_up

EDGES = [
    *(
        ".",
        "..",
        "...",
        " ",
        "a b",
        " a",
        "a ",
        "a/b",
        "/",
        "a\nb",
        "a\x85b",
        "\x7f",
        "%",
        "%2F",
        "a~b",
        "+",
        "é",
        "日",
    ),
    *(
        "x-partition-1",
        "-partition-1",
        "a:b=c_d-e.f",
        "tenant",
        "A",
        "?",
        "#",
        "a;b",
        "\\",
        "a\u2028b",
        "\u00a0",
    ),
    *("x" * size for size in (ENTITY_BYTES_MAX, ENTITY_BYTES_MAX + 1, NAME_BYTES_MAX, NAME_BYTES_MAX + 1)),
    *("é" * (NAME_BYTES_MAX // 2 + more) for more in (0, 1)),
    *("日" * (NAME_BYTES_MAX // 3 + more) for more in (0, 1)),
    *("x" * size + "-partition-12" for size in (LOCAL_BYTES_MAX, LOCAL_BYTES_MAX + 1)),
    "x" * 1_000_000,
]


def names(loop: SimLoop) -> list[str]:
    rng = loop.random("names")
    drawn = ("".join(rng.choices("aB0-_=:. /\t\n\x00%+~é日\u2028", k=rng.randint(1, 6))) for _ in range(60))
    return list(dict.fromkeys([*EDGES, *drawn]))


Accepts = Callable[[str], Awaitable[bool]]


async def _compare(loop: SimLoop, wire: Accepts, rest: Accepts) -> None:
    accepted = 0
    for name in names(loop):
        on_wire = await wire(name)
        assert await rest(name) == on_wire, name[:100]
        accepted += on_wire
    assert 5 < accepted < len(names(loop)) - 5


def _puts(admin: Admin, path: str) -> Accepts:
    async def put(name: str) -> bool:
        answer = await admin.ask("PUT", path.format(quote(name, safe="")))
        assert answer.status in (204, 409, 412), answer
        return answer.status != 412

    return put


def _is_valid(answer: Any) -> bool:
    code = getattr(answer, "error", None) if not isinstance(answer, pb.CommandProducerSuccess) else None
    return code not in (pb.InvalidTopicName, pb.NotAllowedError)


async def test_subscriptions(brokers: Brokers, admin: Admin, loop: SimLoop) -> None:
    client = await brokers.connect()
    assert (await admin.ask("PUT", CLASSIC)).status == 204
    assert (await admin.ask("PUT", ORDERS)).status == 204
    numbers = iter(range(1, 10_000))

    async def attach(name: str) -> bool:
        answer = await client.subscribe("classic", name, consumer_id=next(numbers), permits=0)
        return _is_valid(answer)

    async def register(name: str) -> bool:
        number = next(numbers)
        answer = await client.request(
            pb.CommandScalableTopicSubscribe(
                request_id=0,
                topic=SCALABLE_TOPIC,
                subscription=name,
                consumer_name=str(number),
                consumer_id=number,
                consumer_type=pb.STREAM,
            )
        )
        return not answer.HasField("error")

    await _compare(loop, attach, _puts(admin, CLASSIC + "/subscription/{}"))
    await _compare(loop, register, _puts(admin, ORDERS + "/subscriptions/{}"))


async def _looks_up(client: WireClient, topic: str) -> bool:
    found = await client.request(pb.CommandLookupTopic(topic=topic, request_id=0))
    return bool(found.error not in (pb.InvalidTopicName, pb.NotAllowedError))


async def test_classic_topics(brokers: Brokers, admin: Admin, loop: SimLoop) -> None:
    client = await brokers.connect()

    async def accepts(name: str) -> bool:
        topic = f"persistent://public/default/{name}"
        # REST makes no partition of a topic that does not exist, as Pulsar.
        return await _looks_up(client, topic) and TopicName.parse(topic).partition is None

    await _compare(loop, accepts, _puts(admin, "/admin/v2/persistent/public/default/{}"))


async def test_scalable_topics(brokers: Brokers, admin: Admin, loop: SimLoop) -> None:
    client = await brokers.connect()

    async def create(name: str) -> bool:
        made = await look_up(client, f"topic://public/default/{name}", create_if_missing=True)
        return not made.HasField("error")

    await _compare(loop, create, _puts(admin, "/admin/v2/scalable/public/default/{}"))


async def test_tenants_and_namespaces(brokers: Brokers, admin: Admin, loop: SimLoop) -> None:
    client = await brokers.connect()
    # A slash would begin the next part of the name on the wire.
    plain = [name for name in names(loop) if "/" not in name]
    for name in plain:
        on_wire = await _looks_up(client, f"persistent://{name}/default/x")
        assert await _puts(admin, "/admin/v2/tenants/{}")(name) == on_wire
        assert await _puts(admin, "/admin/v2/namespaces/public/{}")(name) == on_wire


async def test_properties(brokers: Brokers, admin: Admin) -> None:
    good = {f"k{number}": "v" for number in range(PROPERTIES_MAX)}
    for resource in ("persistent", "scalable"):
        path = f"/admin/v2/{resource}/public/default/"
        assert (await admin.ask("PUT", f"{path}{resource}", good)).status == 204
        for bad in ({**good, "more": "v"}, {"k": "v" * 4097}, {"k" * 1025: "v"}):
            assert (await admin.ask("PUT", path + "bad", bad)).status == 412
    added = await admin.ask("PUT", "/admin/v2/scalable/public/default/scalable/properties", {"more": "v"})
    assert added.status == 412


async def test_the_client_refuses_what_the_broker_refuses(brokers: Brokers, loop: SimLoop) -> None:
    wire = await brokers.connect()
    numbers = iter(range(1, 10_000))
    async with brokers.client() as client:
        for name in names(loop):
            try:
                valid = bool(validate_client_name("producer", name))
            except InvalidNameError:
                valid = False
                with pytest.raises(InvalidNameError):
                    await client.create_producer("orders", name=name)
                with pytest.raises(InvalidNameError):
                    await client.subscribe_queue("orders", "s", name=name)
            opened = await wire.producer(producer_id=next(numbers), producer_name=name)
            attached = await wire.subscribe(
                kind=pb.CommandSubscribe.Shared, consumer_id=next(numbers), name=name, permits=0
            )
            assert (_is_valid(opened), _is_valid(attached)) == (valid, valid)
        with pytest.raises(LimitExceededError):
            await client.create_producer("orders", properties={"k": "v" * 4097})


def test_a_long_topic_has_partitions_and_segments_with_valid_names() -> None:
    name = TopicName("persistent", "t" * ENTITY_BYTES_MAX, "n" * ENTITY_BYTES_MAX, "x" * LOCAL_BYTES_MAX)
    assert TopicName.parse(str(name.partition_name(10**9 - 1))).partitioned_topic == name
