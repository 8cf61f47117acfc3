"""Properties, expiry and analysis of subscriptions of classic topics over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import CLASSIC, Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import batch

NAME = "persistent://public/default/classic"
SUB = f"{CLASSIC}/subscription/s"


@pytest.fixture
def filled(admin: Admin) -> Admin:
    """The admin API of a broker with two subscriptions and five messages, a minute apart."""

    async def publish() -> None:
        async with admin.brokers.client() as client:
            producer = await client.create_producer(NAME)
            for number in range(5):
                await producer.send(b"%d" % number)
                await asyncio.sleep(60)

    assert admin("PUT", CLASSIC).status == 204
    for name in ("s", "other"):
        assert admin("PUT", f"{CLASSIC}/subscription/{name}", "earliest").status == 204
    admin.loop.run(publish())
    return admin


def backlogs(admin: Admin) -> dict[str, int]:
    found = admin("GET", f"{CLASSIC}/stats").json["subscriptions"]
    return {name: one["msgBacklog"] for name, one in found.items()}


def id_of(admin: Admin, number: int) -> dict[str, int]:
    header = admin("GET", f"{SUB}/position/{number}").headers["x-pulsar-message-id"]
    ledger, entry = map(int, header.split(":")[:2])
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}


def test_properties_of_a_subscription_are_replaced_as_a_whole(filled: Admin) -> None:
    assert filled("GET", f"{SUB}/properties").json == {}
    assert filled("PUT", f"{SUB}/properties", {"colour": "red", "size": "2"}).status == 204
    assert filled("PUT", f"{SUB}/properties", {"colour": "blue"}).status == 204
    assert filled("GET", f"{SUB}/properties").json == {"colour": "blue"}
    assert filled("GET", f"{CLASSIC}/stats").json["subscriptions"]["s"]["subscriptionProperties"] == {
        "colour": "blue"
    }
    assert filled("GET", f"{CLASSIC}/subscription/none/properties").status == 404
    assert filled("PUT", f"{SUB}/properties", {"colour": 1}).status == 400
    assert filled("PUT", f"{SUB}/properties", {"k": "x" * 100_000}).status == 412


def test_a_subscription_is_created_with_properties(filled: Admin, brokers: Brokers) -> None:
    start = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1, "properties": {"x": "y"}}
    new = f"{CLASSIC}/subscription/new"
    assert filled("PUT", new, start).status == 204
    brokers.loop.run(brokers.restart())
    filled.use(brokers)
    assert filled("GET", f"{new}/properties").json == {"x": "y"}
    shown = filled("GET", f"{CLASSIC}/stats").json["subscriptions"]
    assert shown["new"]["subscriptionProperties"] == {"x": "y"}
    assert (shown["new"]["msgBacklog"], shown["s"]["subscriptionProperties"]) == (0, {})


def test_a_subscription_is_not_created_with_malformed_properties_or_replicated(filled: Admin) -> None:
    new = f"{CLASSIC}/subscription/new"
    refused = filled("PUT", f"{new}?replicated=true", "earliest")
    assert (refused.status, "one cluster" in refused.json["reason"]) == (405, True)
    assert filled("PUT", new, {"ledgerId": 0, "entryId": 0, "properties": {"x": 1}}).status == 412
    assert filled("PUT", new, {"ledgerId": 0, "entryId": 0, "properties": {"k": "x" * 100_000}}).status == 412
    assert filled("GET", f"{new}/properties").status == 404
    assert filled("PUT", f"{new}?replicated=false", "earliest").status == 204


def test_messages_expire_by_age_for_one_or_for_all_subscriptions(filled: Admin) -> None:
    assert filled("POST", f"{SUB}/expireMessages/150").status == 204
    assert backlogs(filled) == {"s": 2, "other": 5}
    assert filled("POST", f"{CLASSIC}/all_subscription/expireMessages/210").status == 204
    assert backlogs(filled) == {"s": 2, "other": 3}


@pytest.mark.parametrize(
    ("excluded", "left"),
    [({}, 2), ({"isExcluded": True}, 3), ({"excluded": True}, 3)],
)
def test_messages_expire_up_to_a_message_id(filled: Admin, excluded: dict[str, bool], left: int) -> None:
    third = {**id_of(filled, 3), **excluded}
    assert filled("POST", f"{SUB}/expireMessages", third).status == 204
    assert backlogs(filled) == {"s": left, "other": 5}
    assert filled("POST", f"{SUB}/expireMessages").status == 412
    assert filled("POST", f"{SUB}/expireMessages", "latest").status == 204
    assert backlogs(filled)["s"] == 0


def test_a_backlog_is_counted_from_a_message_id_on(filled: Admin) -> None:
    filled("POST", f"{SUB}/skip/1")
    whole = filled("POST", f"{SUB}/analyzeBacklog").json
    assert (whole["entries"], whole["messages"], whole["aborted"]) == (4, 4, False)
    first = id_of(filled, 1)
    assert whole["firstPosition"] == f"{first['ledgerId']}:{first['entryId']}"
    rest = filled("POST", f"{SUB}/analyzeBacklog", id_of(filled, 3)).json
    assert (rest["entries"], rest["lastPosition"]) == (2, whole["lastPosition"])
    filled("POST", f"{SUB}/skip_all")
    assert filled("POST", f"{SUB}/analyzeBacklog").json["entries"] == 0


def test_a_message_id_does_not_fit_a_topic_with_partitions(admin: Admin) -> None:
    parts = "/admin/v2/persistent/public/default/parts"
    admin("PUT", f"{parts}/partitions", 2)
    admin("PUT", f"{parts}/subscription/s", "earliest")
    assert admin("POST", f"{parts}/subscription/s/analyzeBacklog").status == 405
    reset = f"{parts}/subscription/s/resetcursor"
    assert admin("POST", reset, {"ledgerId": 1, "entryId": 0}).status == 405
    assert admin("POST", reset, {"ledgerId": -1, "entryId": -1}).status == 204
    assert admin("POST", reset, {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}).status == 204
    assert admin("POST", reset, "earliest").status == 204
    assert admin("PUT", f"{parts}/subscription/s/properties", {"a": "1"}).status == 204
    assert admin("GET", f"{parts}/subscription/s/properties").json == {"a": "1"}


@pytest.mark.parametrize(
    ("batch_index", "excluded", "left"),
    [(0, False, 3), (1, False, 2), (1, True, 1), (2, True, 0), (-1, False, 3), (-1, True, 0)],
)
async def test_a_cursor_is_reset_into_a_batch_or_begins_there(
    brokers: Brokers, batch_index: int, excluded: bool, left: int
) -> None:
    client, admin = await brokers.connect(), Admin(brokers)
    await client.producer(NAME)
    client.publish(b"", 0, entry=batch([b"a", b"b", b"c"], 0), messages=3)
    stored = await client.receipt()
    await client.publish_all([b"tail"], first=3)
    assert (await admin.ask("PUT", SUB, "latest")).status == 204
    aim: dict[str, object] = {"ledgerId": stored.ledger, "entryId": stored.entry}
    aim |= {"batchIndex": batch_index, "isExcluded": excluded}
    assert (await admin.ask("POST", f"{SUB}/resetcursor", aim)).status == 204
    assert (await admin.ask("PUT", f"{SUB}2", aim)).status == 204
    for subscription in (SUB, f"{SUB}2"):
        assert (await admin.ask("POST", f"{subscription}/analyzeBacklog")).json["messages"] == left + 1


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive])
@pytest.mark.parametrize(
    ("batch_index", "excluded", "left"),
    [(0, False, 2), (1, False, 1), (1, True, 2), (0, True, 3), (2, False, 0), (-1, False, 0), (-1, True, 3)],
)
async def test_messages_expire_up_to_one_inside_a_batch(
    brokers: Brokers, kind: int, batch_index: int, excluded: bool, left: int
) -> None:
    client, admin = await brokers.connect(), Admin(brokers)
    await client.producer(NAME)
    await client.subscribe(NAME, subscription="s", kind=kind)
    client.publish(b"", 0, entry=batch([b"a", b"b", b"c"], 0), messages=3)
    stored = await client.receipt()
    await client.publish_all([b"tail"], first=3)
    last: dict[str, object] = {"ledgerId": stored.ledger, "entryId": stored.entry}
    last |= {"batchIndex": batch_index, "isExcluded": excluded}
    for _ in range(2):
        assert (await admin.ask("POST", f"{SUB}/expireMessages", last)).status == 204
        assert (await admin.ask("POST", f"{SUB}/analyzeBacklog")).json["messages"] == left + 1
    if kind == pb.CommandSubscribe.Shared:
        shown = (await admin.ask("GET", f"{CLASSIC}/stats")).json["subscriptions"]["s"]
        assert shown["unackedMessages"] == left + 1
