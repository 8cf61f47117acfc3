"""A control process towards a Pulsar that asks each client for a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from anabranch import AsyncAdminClient, AsyncClient, AuthenticationToken
from anabranch.client.net.connection_pool import PoolTimes, new_pool
from anabranch.client.net.stored_tail import BEFORE_ALL, StoredTail, stored_since
from anabranch.errors import AuthenticationError, AuthorizationError
from simulation.harness.pulsar.control import ControlServer
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.guarded import TOKEN, allow, control_of
from tests.harness.security import token_for
from tests.harness.splitting import assert_order_through_a_split

pytestmark = [pytest.mark.real_time, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def control(
    guarded: PulsarStandalone, zookeeper: ZookeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlServer]:
    with control_of(guarded, f"{zookeeper.url}/guarded", tmp_path_factory.mktemp("control")) as server:
        yield server


async def test_messages_pass_a_split_with_the_token_of_an_operator(control: ControlServer) -> None:
    client = AsyncClient(control.url, authentication=AuthenticationToken(TOKEN))
    async with AsyncAdminClient(control.http_url) as admin, client:
        await assert_order_through_a_split(client, admin, "guarded")


async def test_a_client_without_a_token_is_refused_by_pulsar(control: ControlServer) -> None:
    async with AsyncAdminClient(control.http_url) as admin:
        await admin.create_topic("closed")
    async with AsyncClient(control.url, operation_timeout=10) as client:
        with pytest.raises(AuthenticationError):
            await client.create_producer("closed", name="stranger")


async def test_a_sealed_segment_tells_what_it_has_stored_only_to_a_role_that_may_consume(
    control: ControlServer, guarded: PulsarStandalone
) -> None:
    topic = "persistent://public/default/half.segment-0000-ffff-0"
    await asyncio.to_thread(allow, guarded, "writer", "produce")
    await asyncio.to_thread(allow, guarded, "both", "produce", "consume")
    async with AsyncAdminClient(control.http_url) as admin:
        await admin.create_topic("half")
        writer = AuthenticationToken(token_for("writer"))
        async with AsyncClient(control.url, authentication=writer) as client:
            producer = await client.create_producer("half", name="me")
            await producer.send(b"before")
        await admin.split("half", 0)
    for role, refused in (("writer", True), ("both", False)):
        pool = new_pool(guarded.url, PoolTimes(), {"authentication": AuthenticationToken(token_for(role))})
        try:
            tail = StoredTail(pool, topic, "me", BEFORE_ALL)
            connection = await pool.connection_for(topic)
            if refused:
                with pytest.raises(AuthorizationError):
                    await stored_since(tail, connection)
            else:
                assert [entry.sequence_id for entry in await stored_since(tail, connection)] == [0]
        finally:
            await pool.close()
