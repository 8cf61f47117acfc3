"""Every role x every command and call x own, foreign and missing resources, judged by Pulsar's model.

The handlers are replaced by ones that note that they were reached, so no cell changes the state of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from anabranch.admin.http import server
from anabranch.admin.http.calls import Call
from anabranch.admin.routes.table import ENDPOINTS
from anabranch.broker.wire.command_handler import has_answer
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.entrance import check_listed
from anabranch.broker.wire.handlers import HANDLERS
from anabranch.errors import AuthenticationError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights import table
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.largest import fill_required
from tests.harness.rights import RIGHTS, connect_as, grant, headers_of
from tests.harness.rights_model import (
    FOREIGN_NAMESPACE,
    OWN_NAMESPACE,
    OWN_TENANT,
    POLICIES,
    ROLES,
    SPOTS,
    RightsSpot,
    may,
    read_model,
)
from tests.harness.wire import WireClient, settle

pytestmark = pytest.mark.brokers(**RIGHTS)

MODEL = read_model(Path(__file__).with_name("pulsar_model.txt"))
COMMANDS = {name: words for name, words in MODEL["commands"].items() if name != "Connect"}
FIRST_SUBSCRIPTION = " with first subscription"
SPELLINGS = ("persistent://{}", "topic://{}", "{}", "persistent://{}-partition-3", "segment://{}/0000-ffff-0")
"""A topic in all schemes, a partition and a segment: the model has the same rights for all of them."""
PARTS = {
    "cluster": "standalone",
    "domain": "persistent",
    "policy": "retention",
    "bundle": "0x00000000_0xffffffff",
    "segment": "0",
    "segments:path": "0/1",
    "descriptor": "0000-ffff-0",
    "role": "friend",
    "count": "1",
    "timestamp": "0",
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
}
CONNECTING = [role for role in ROLES if may(role, [{"proven"}], SPOTS[0], with_subscription=False)]
UNLIKE_BARRIERS = 10**6
BARRIER = pb.CommandWatchTopicListClose
CALLS = {tuple(name.split(" ")): words for name, words in MODEL["calls"].items()}


def callers_of(words: str) -> list[set[str]]:
    """The callers that the model lists for each operation of a command or call."""
    return [set(MODEL["operations"][operation.strip()].split()) for operation in words.split("+")]


def command_for(name: str, spot: RightsSpot, spelling: str = "persistent://{}") -> Any:
    kind, is_first, _ = name.partition(FIRST_SUBSCRIPTION)
    command = fill_required(getattr(pb, f"Command{kind}")())
    values = {
        "topic": spelling.format(f"{spot.tenant}/{spot.namespace}/{spot.topic}"),
        "namespace": f"{spot.tenant}/{spot.namespace}",
        "subscription": spot.subscription,
        "request_id": UNLIKE_BARRIERS,
    }
    for field, value in values.items():
        if field in command.DESCRIPTOR.fields_by_name:
            try:
                setattr(command, field, value)
            except AttributeError:
                # The subscriptions of a transaction are messages of their own.
                continue
    if is_first:
        command.initial_subscription_name = spot.subscription
    return command


def path_for(template: str, spot: RightsSpot) -> str:
    return re.sub(r"{([^}]*)}", lambda part: {**PARTS, **spot._asdict()}[part[1]], template)


@pytest.fixture
async def shops(brokers: Brokers) -> Brokers:
    """Brokers with the namespaces and topics of the matrix."""
    await grant(brokers, OWN_NAMESPACE, POLICIES)
    await grant(brokers, FOREIGN_NAMESPACE, {"auth_policies": {"namespace_auth": {"banker": ["produce"]}}})
    root = await connect_as(brokers, "root")
    for number, topic in enumerate(("shop/prod/orders", "shop/prod/others", "bank/prod/orders")):
        made = await root.producer(f"persistent://{topic}", number)
        assert isinstance(made, pb.CommandProducerSuccess)
    root.close()
    return brokers


class Reached:
    """Handlers that only note that they were reached."""

    def __init__(self) -> None:
        self.count = 0

    def act(self, connection: ServerConnection, command: Message) -> None:
        self.count += 1
        if isinstance(command, BARRIER):
            connection.send(pb.CommandSuccess(request_id=command.request_id))

    async def call(self, call: Call) -> None:
        self.count += 1


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Reached:
    """Replaces all handlers of commands and calls."""
    noted = Reached()
    for kind, handler in HANDLERS.items():
        monkeypatch.setitem(HANDLERS, kind, handler._replace(act=noted.act))
    noting = [replace(one, handler=noted.call) for one in ENDPOINTS]
    monkeypatch.setattr(server, "ENDPOINTS", noting)
    return noted


def refusal_in(answers: list[Any]) -> str | None:
    """The text of a refusal among answers of the broker."""
    for answer in answers:
        if isinstance(answer, pb.CommandPeerReply) and answer.error == "AuthorizationError":
            return answer.message
        for code, text in (("error", "message"), ("error_code", "error_message")):
            if getattr(answer, code, None) == pb.AuthorizationError:
                return str(getattr(answer, text))
    return None


async def outcome(client: WireClient, command: Any, reached: Reached) -> str | None:
    """Send a command; return None if its handler was reached, or the text of the refusal."""
    before = reached.count
    client.inbox.clear()
    client.send(command)
    await client.request(BARRIER(watcher_id=1, request_id=0))
    was_reached = reached.count - before == 2
    refused = refusal_in(client.inbox)
    if was_reached:
        assert refused is None
        return None
    assert refused is not None or not has_answer(command), command
    return refused or ""


def cells(names: Any) -> Iterator[tuple[Any, RightsSpot]]:
    return ((name, spot) for name in names for spot in SPOTS)


def without_names(text: str) -> str:
    """The text of a refusal without the names that the caller itself sent."""
    for spot in SPOTS:
        for part in (spot.tenant, spot.topic, spot.namespace, spot.subscription):
            text = re.sub(rf"\b{part}\b", "*", text)
    return text


async def test_the_model_knows_every_command_and_call() -> None:
    kinds = {getattr(pb, f"Command{name.partition(FIRST_SUBSCRIPTION)[0]}") for name in COMMANDS}
    assert kinds == set(HANDLERS)
    assert set(CALLS) == {(one.method, one.path) for one in ENDPOINTS}
    used = {op.strip() for words in (*COMMANDS.values(), *CALLS.values()) for op in words.split("+")}
    assert used == set(MODEL["operations"])


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("role", CONNECTING)
async def test_commands_are_refused_as_the_model_says(
    shops: Brokers, reached: Reached, role: str, spelling: str
) -> None:
    client = await connect_as(shops, role)
    wrong: list[str] = []
    texts: dict[Any, set[Any]] = {}
    for name, spot in cells(COMMANDS):
        command = command_for(name, spot, spelling)
        if spelling != SPELLINGS[0] and not hasattr(command, "topic"):
            continue
        names_one = hasattr(command, "subscription") or FIRST_SUBSCRIPTION in name
        expected = may(role, callers_of(COMMANDS[name]), spot, with_subscription=names_one)
        text = await outcome(client, command, reached)
        if (text is None) != expected:
            wrong.append(f"{role} {name} on {spot.about}: expected {'allowed' if expected else 'refused'}")
        if text is not None and spot.tenant != OWN_TENANT:
            texts.setdefault(name, set()).add(without_names(text))
    assert wrong == []
    assert {name: found for name, found in texts.items() if len(found) > 1} == {}


@pytest.mark.parametrize("role", sorted({*ROLES} - {*CONNECTING}))
async def test_a_client_without_a_role_of_its_own_cannot_connect(shops: Brokers, role: str) -> None:
    connecting = connect_as(shops, role) if role else shops.connect()
    with pytest.raises(AuthenticationError, match=r"^authentication failed$"):
        await connecting


@pytest.mark.parametrize("role", ROLES)
async def test_calls_are_refused_as_the_model_says(shops: Brokers, reached: Reached, role: str) -> None:
    admin, headers = Admin(shops), headers_of(role)
    wrong: list[str] = []
    texts: dict[Any, set[Any]] = {}
    for (method, template), spot in cells(CALLS):
        callers = callers_of(CALLS[method, template])
        expected = may(role, callers, spot, with_subscription="{subscription}" in template)
        before = reached.count
        answer = await admin.ask(method, path_for(template, spot), headers=headers)
        if (reached.count > before) != expected or (answer.status in (401, 403)) == expected:
            wrong.append(f"{role} {method} {template} on {spot.about}: {answer.status}, expected {expected}")
        if not expected and spot.tenant != OWN_TENANT:
            texts.setdefault((method, template), set()).add(
                (answer.status, without_names(answer.json["reason"]))
            )
    assert wrong == []
    assert {name: found for name, found in texts.items() if len(found) > 1} == {}


async def test_a_refused_call_changes_nothing(shops: Brokers) -> None:
    admin = Admin(shops)
    before = dict(shops.tree.values)
    for role in ("stranger", "bank-admin", "limited"):
        for (method, template), spot in cells(CALLS):
            callers = callers_of(CALLS[method, template])
            if not may(role, callers, spot, with_subscription="{subscription}" in template):
                answer = await admin.ask(method, path_for(template, spot), headers=headers_of(role))
                assert answer.status == 403
    assert dict(shops.tree.values) == before


@pytest.mark.parametrize("kind", table.COMMANDS, ids=lambda kind: kind.__name__)
def test_a_command_without_its_line_stops_the_start(
    kind: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(table.COMMANDS, kind)
    with pytest.raises(AssertionError, match=kind.__name__):
        check_listed({*HANDLERS, pb.CommandConnect, pb.CommandSend, pb.CommandPing, pb.CommandPong})


async def test_a_command_without_its_line_is_refused(
    shops: Brokers, reached: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in HANDLERS:
        with monkeypatch.context() as patch:
            patch.delitem(table.COMMANDS, kind)
            root = await connect_as(shops, "root")
            root.send(command_for(kind.__name__.removeprefix("Command"), SPOTS[0]))
            await settle()
            assert reached.count == 0, kind
