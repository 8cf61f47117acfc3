"""A role learns nothing about foreign resources: each answer is the same whether they exist or not.

Every command and every admin call is sent twice, with names of the same length, and the answers are compared
byte by byte.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from anabranch.admin.routes.table import CALLS
from anabranch.model.names import TopicName
from anabranch.protocol.commands import encode
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.needs import Right
from anabranch.rights.table import COMMANDS
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, connect_as, grant, headers_of
from tests.harness.wire import WireClient

pytestmark = pytest.mark.brokers(**RIGHTS)


class ForeignPlace(NamedTuple):
    """A topic, which exists or does not."""

    tenant: str
    namespace: str
    topic: str
    subscription: str = "subs"

    @property
    def parts(self) -> dict[str, str]:
        return self._asdict()


CLASSIC = ForeignPlace("shop", "prod", "orders")
SCALABLE = ForeignPlace("shop", "prod", "clicks")
MISSING = [
    pytest.param({"topic": "absent"}, id="topic"),
    pytest.param({"subscription": "gone"}, id="subscription"),
    pytest.param({"namespace": "gone"}, id="namespace"),
    pytest.param({"tenant": "gone"}, id="tenant"),
]
ROLES = ["stranger", "narrow", "bank-admin", "proxy/stranger"]
"""Without grants; with a grant on another topic of the namespace; admin of another tenant; behind a proxy."""

NOT_SENT = {pb.CommandConnect, pb.CommandSend, pb.CommandPing, pb.CommandPong, pb.CommandAuthResponse}
"""Part of the handshake and of the keep-alive, or bound to an open producer."""

COMMAND_TYPES = sorted(COMMANDS.keys() - NOT_SENT, key=lambda kind: kind.__name__)
VARIABLE = re.compile(r"{(\w+)(:path)?}")
FIXED_PARTS = {
    "domain": "persistent",
    "cluster": "standalone",
    "segment": "0",
    "segments": "0/1",
    "descriptor": "0000-ffff-0",
    "count": "1",
    "timestamp": "1",
    "version": "0",
    "seconds": "1",
    "lane": "1",
    "ledger": "0",
    "entry": "0",
    "position": "1",
    "key": "colour",
    "name": "maxMessageSize",
    "figures": "metrics",
    "subName": "s",
    "value": "red",
    "policy": "retention",
    "bundle": "0x00000000_0xffffffff",
    "role": "someone",
}


@pytest.fixture(autouse=True)
async def _resources(brokers: Brokers) -> None:
    """Two tenants, and in one of them topics with subscriptions, clients and a schema."""
    grants = {"destination_auth": {"persistent://shop/prod/own": {"narrow": ["produce", "consume"]}}}
    await grant(brokers, "shop/prod", {"auth_policies": grants, "retention_policies": {}})
    await grant(brokers, "bank/prod")
    root = await connect_as(brokers, "root")
    classic = "persistent://shop/prod/orders"
    schema = pb.Schema(name="orders", schema_data=b'"int"', type=pb.Schema.Json)
    await root.producer(classic, producer_name="secret-producer", schema=schema)
    await root.subscribe(classic, "subs", name="secret-consumer")
    await brokers[0].controllers.create_topic(TopicName.parse("topic://shop/prod/clicks"), 2)
    leader = await brokers[0].controllers.controller(TopicName.parse("topic://shop/prod/clicks"))
    await leader.ensure_subscription("subs", "QUEUE", "earliest")


def names_in_fields(place: ForeignPlace, scheme: str) -> dict[str, Any]:
    """The fields of commands that name the resource."""
    namespace = f"{place.tenant}/{place.namespace}"
    segment = "/0000-7fff-0" if scheme == "segment" else ""
    return {
        "topic": f"{scheme}://{namespace}/{place.topic}{segment}",
        "namespace": namespace,
        "subscription": place.subscription,
        # A topic that is made on first use would answer as one that exists.
        "create_if_missing": False,
        "force_topic_creation": False,
        "metadata_auto_creation_enabled": False,
    }


def filled(kind: type[Message], values: dict[str, Any]) -> Message:
    """A command with all of its required fields; those that name the resource have its names."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if not field.is_repeated and (field.name in values or field.is_required):
            value = values.get(field.name) if field.message_type is None else None
            value = _some(field) if value is None else value
            if isinstance(value, Message):
                getattr(made, field.name).CopyFrom(value)
            else:
                setattr(made, field.name, value)
    return made


def _some(field: Any) -> Any:
    if field.message_type is not None:
        return filled(getattr(pb, field.message_type.name), {})
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    return {"str": "x", "bytes": b"x"}.get(type(field.default_value).__name__, 1)


async def answers(client: WireClient, command: Message) -> bytes:
    """All that the broker answers to one command, as bytes."""
    client.inbox.clear()
    client.send(command)
    await asyncio.sleep(2.0)
    sent = [encode(one) for one in client.inbox if isinstance(one, Message)]
    assert len(sent) == len(client.inbox), "entries were delivered"
    return b"".join(sent) + (b"hung up" if client.hung_up else b"")


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("role", ROLES)
async def test_commands_answer_alike_for_existing_and_missing_resources(
    brokers: Brokers, role: str, missing: dict[str, str]
) -> None:
    client = await connect_as(brokers, role)
    refused = 0
    for kind in COMMAND_TYPES:
        for scheme in ("persistent", "topic", "segment"):
            found = []
            place = CLASSIC if scheme == "persistent" else SCALABLE
            for asked in (place, place._replace(**missing)):
                text = await answers(client, filled(kind, names_in_fields(asked, scheme)))
                for name, value in missing.items():
                    text = text.replace(value.encode(), getattr(place, name).encode())
                found.append(text)
                if client.hung_up:
                    client = await connect_as(brokers, role)
            assert found[0] == found[1], f"{kind.__name__} {scheme}"
            assert b"secret" not in found[0]
            refused += b"needs" in found[0]
            if COMMANDS[kind].right not in (Right.OWN, Right.AUTHENTICATED, Right.OPEN):
                assert found[0], f"{kind.__name__} gets no answer"
    assert refused > 20, "the scan reached the check of rights"


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("role", [*ROLES, ""])
async def test_admin_calls_answer_alike_for_existing_and_missing_resources(
    admin: Admin, role: str, missing: dict[str, str]
) -> None:
    for method, template in CALLS:
        place = SCALABLE if "/scalable" in template or "/segments" in template else CLASSIC
        found = []
        for asked in (place, place._replace(**missing)):
            parts = FIXED_PARTS | asked.parts
            path = VARIABLE.sub(lambda match, parts=parts: parts[match[1]], template)  # type: ignore[misc]
            status, headers, body = await admin.ask(method, path, headers=headers_of(role))
            text = f"{status} {sorted(headers.items())} ".encode() + body
            for name, value in missing.items():
                text = text.replace(value.encode(), getattr(place, name).encode())
            found.append(text)
        if "process_cpu_seconds_total" not in found[0].decode():
            assert found[0] == found[1], f"{method} {template}"
        assert b"secret" not in found[0], f"{method} {template}"
