"""Connections and requests of a proxy, which speaks for the role of its client."""

from __future__ import annotations

import pytest

from anabranch.errors import AuthenticationError
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, connect_as, grant
from tests.harness.wire import error_of

TOPIC = "persistent://shop/prod/orders"
BOTH = {"auth_policies": {"namespace_auth": {"proxy": ["produce"], "app": ["produce"], "other": ["produce"]}}}

pytestmark = pytest.mark.brokers(**RIGHTS)


@pytest.mark.parametrize("role", ["proxy", "proxy/proxy", "app/other", "app/root", "root/app"])
async def test_a_connection_with_a_wrong_pair_of_roles_is_refused(brokers: Brokers, role: str) -> None:
    with pytest.raises(AuthenticationError, match=r"^authentication failed$"):
        await connect_as(brokers, role)
    assert "proxy" in brokers.audit.reasons[-1], "the audit log has the reason"


@pytest.mark.brokers(authorization=False, proxy_roles="")
async def test_without_proxies_no_role_speaks_for_another(brokers: Brokers) -> None:
    """Names belong to roles also without authorisation."""
    with pytest.raises(AuthenticationError):
        await connect_as(brokers, "proxy/app")


@pytest.mark.parametrize(
    ("granted", "allowed"), [(("proxy", "app"), True), (("proxy",), False), (("app",), False)]
)
async def test_the_proxy_and_its_client_both_need_the_right(
    brokers: Brokers, granted: tuple[str, ...], allowed: bool
) -> None:
    roles = {role: ["produce"] for role in granted}
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": roles}})
    answer = await (await connect_as(brokers, "proxy/app")).producer(TOPIC)
    assert isinstance(answer, pb.CommandProducerSuccess) == allowed
    assert allowed or error_of(answer) == pb.AuthorizationError


async def test_both_lose_their_objects_when_one_loses_the_right(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", BOTH)
    app, other = await connect_as(brokers, "proxy/app"), await connect_as(brokers, "proxy/other")
    await app.producer(TOPIC)
    await other.producer(TOPIC)
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": {"proxy": ["produce"]}}})
    await app.expect(pb.CommandCloseProducer)
    await other.expect(pb.CommandCloseProducer)


async def test_names_belong_to_the_client_and_not_to_the_proxy(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", BOTH)
    app, other = await connect_as(brokers, "proxy/app"), await connect_as(brokers, "proxy/other")
    await app.producer(TOPIC, producer_name="p")
    await app.publish_all([b"0"])
    app.close()
    assert error_of(await other.producer(TOPIC, producer_name="p")) == pb.ProducerBusy
    direct = await connect_as(brokers, "app")
    assert (await direct.producer(TOPIC, producer_name="p")).last_sequence_id == 0


@pytest.mark.parametrize(
    "command",
    [
        pb.CommandLookupTopic(topic=TOPIC, request_id=0),
        pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0, metadata_auto_creation_enabled=True),
    ],
)
async def test_a_lookup_names_the_role_of_its_connection(
    brokers: Brokers, command: pb.CommandLookupTopic | pb.CommandPartitionedTopicMetadata
) -> None:
    await grant(brokers, "shop/prod", BOTH)
    for role in ("proxy/app", "app"):
        client = await connect_as(brokers, role)
        answers = []
        for original in ("", "app", "root"):
            command.original_principal = original
            answers.append(await client.request(command))
        assert [answer.HasField("error") for answer in answers] == [False, False, True]
        assert answers[-1].error == pb.AuthorizationError
