"""Our client with rights: one role only produces and one only consumes, through a split, on two brokers."""

from __future__ import annotations

import pytest

from anabranch import AuthenticationToken
from anabranch.errors import AuthorizationError
from anabranch.model.names import TopicName
from tests.harness.cluster import Brokers, drain
from tests.harness.rights import RIGHTS, grant
from tests.harness.security import token_for

TOPIC = "topic://shop/prod/orders"
pytestmark = pytest.mark.brokers(**RIGHTS, count=2)


async def test_each_role_needs_no_more_than_its_own_right(brokers: Brokers) -> None:
    roles = {"app": ["produce"], "reader": ["consume"]}
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": roles}})
    async with (
        brokers.client(authentication=AuthenticationToken(token_for("app"))) as app,
        brokers.client(authentication=AuthenticationToken(token_for("reader"))) as reader,
    ):
        producer = await app.create_producer(TOPIC)
        stream = await reader.subscribe_stream(TOPIC, "billing", initial_position="earliest")
        queue = await reader.subscribe_queue(TOPIC, "work", initial_position="earliest")
        for number in range(20):
            await producer.send(b"%d" % number, key=f"key-{number}")
        leader = brokers[brokers.leader_of(TopicName.parse(TOPIC))]
        await (await leader.controllers.lead(TopicName.parse(TOPIC))).split(0)
        for number in range(20, 40):
            await producer.send(b"%d" % number, key=f"key-{number}")
        taken = []
        while messages := await queue.receive_many(100, timeout=1.0):
            taken += messages
        for received in (await drain(stream), taken):
            assert {int(message.data) for message in received} == set(range(40))
        with pytest.raises(AuthorizationError, match="needs the right to consume"):
            await app.subscribe_stream(TOPIC, "billing")
        with pytest.raises(AuthorizationError, match="needs the right to produce"):
            await (await reader.create_producer(TOPIC)).send(b"forged")
