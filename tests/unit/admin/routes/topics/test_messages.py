"""Single messages of classic topics over HTTP: by id, from a backlog, by number, by time."""

from __future__ import annotations

import base64
import json

import pytest

from tests.harness.admin import CLASSIC, Admin, AdminAnswer

NAME = "persistent://public/default/classic"


@pytest.fixture
def filled(admin: Admin) -> Admin:
    """The admin API of a broker with three messages, each in an entry of its own."""

    async def publish() -> None:
        async with admin.brokers.client() as client:
            producer = await client.create_producer(NAME)
            for number in range(3):
                await producer.send(b"payload-%d" % number, key="schlüssel", properties={"n": f"{number}\n"})

    assert admin("PUT", CLASSIC).status == 204
    assert admin("PUT", f"{CLASSIC}/subscription/s", "earliest").status == 204
    admin.loop.run(publish())
    return admin


def id_of(answer: AdminAnswer) -> str:
    ledger, entry = answer.headers["x-pulsar-message-id"].split(":")
    return f"{CLASSIC}/ledger/{ledger}/entry/{entry}"


def test_a_peek_shows_the_backlog_in_order_and_takes_nothing(filled: Admin) -> None:
    for _ in range(2):
        shown = [filled("GET", f"{CLASSIC}/subscription/s/position/{number}") for number in (1, 2, 3)]
        assert [answer.status for answer in shown] == [200, 200, 200]
        assert [b"payload-%d" % number in answer.body for number, answer in enumerate(shown)] == [True] * 3
    assert filled("GET", f"{CLASSIC}/subscription/s/position/4").status == 404
    assert filled("GET", f"{CLASSIC}/subscription/s/position/0").status == 412
    assert filled("GET", f"{CLASSIC}/subscription/other/position/1").status == 404
    filled("POST", f"{CLASSIC}/subscription/s/skip/1")
    assert b"payload-1" in filled("GET", f"{CLASSIC}/subscription/s/position/1").body


def test_a_message_is_found_by_its_id_with_its_metadata(filled: Admin) -> None:
    peeked = filled("GET", f"{CLASSIC}/subscription/s/position/2")
    found = filled("GET", id_of(peeked))
    assert (found.status, found.body) == (200, peeked.body)
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["x-pulsar-broker-entry-metadata-index"] == "1"
    assert found.headers["x-pulsar-publish-time"].endswith("Z")
    assert filled("GET", f"{CLASSIC}/ledger/99/entry/0").status == 404
    assert filled("GET", id_of(peeked).rsplit("/", 1)[0] + "/7").status == 404
    assert filled("GET", f"{CLASSIC}/ledger/x/entry/0").status == 412


def test_keys_and_properties_cannot_break_out_of_headers(admin: Admin) -> None:
    async def publish() -> None:
        async with admin.brokers.client() as client:
            producer = await client.create_producer(NAME, batching=False)
            await producer.send(b"x", key="a\r\nX-Evil: 1", properties={"n": "ü\r\n"})

    assert admin("PUT", CLASSIC).status == 204
    admin.loop.run(publish())
    answer = admin("GET", f"{CLASSIC}/examinemessage?initialPosition=earliest&messagePosition=1")
    assert answer.status == 200
    assert "x-evil" not in answer.headers
    assert base64.b64decode(answer.headers["x-pulsar-partition-key"]) == b"a\r\nX-Evil: 1"
    assert answer.headers["x-pulsar-partition-key-b64-encoded"] == "true"
    assert json.loads(answer.headers["x-pulsar-property"]) == {"n": "ü\r\n"}


def test_messages_are_examined_from_both_ends(filled: Admin) -> None:
    path = f"{CLASSIC}/examinemessage"
    assert b"payload-2" in filled("GET", path).body
    assert b"payload-1" in filled("GET", f"{path}?initialPosition=latest&messagePosition=2").body
    assert b"payload-0" in filled("GET", f"{path}?initialPosition=earliest").body
    assert filled("GET", f"{path}?messagePosition=4").status == 404
    assert filled("GET", f"{path}?initialPosition=middle").status == 412


def test_the_id_at_a_time_is_that_of_the_first_message_from_then_on(filled: Admin) -> None:
    last = filled("GET", f"{CLASSIC}/lastMessageId").json
    assert filled("GET", f"{CLASSIC}/messageid/0").json == {**last, "entryId": last["entryId"] - 2}
    assert filled("GET", f"{CLASSIC}/messageid/99999999999999").json == last


def test_topics_with_partitions_are_asked_by_partition(admin: Admin) -> None:
    assert admin("PUT", f"{CLASSIC}/partitions", 2).status == 204
    for path in ("ledger/0/entry/0", "examinemessage", "messageid/0"):
        assert admin("GET", f"{CLASSIC}/{path}").status == 405, path


def test_the_backlog_size_is_that_of_the_entries_behind_a_message(filled: Admin) -> None:
    ids = [
        tuple(map(int, answer.headers["x-pulsar-message-id"].split(":")))
        for answer in (filled("GET", f"{CLASSIC}/subscription/s/position/{n}") for n in (1, 2, 3))
    ]

    def size_after(ledger: int, entry: int) -> int:
        body = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        return int(filled("PUT", f"{CLASSIC}/backlogSize", body).body)

    total = filled("GET", f"{CLASSIC}/internalStats").json["totalSize"]
    behind = [size_after(*one) for one in ids]
    assert total > behind[0] > behind[1] > behind[2] == 0
    assert behind[0] - behind[1] == behind[1] == total - behind[0]
    assert size_after(-1, -1) == size_after(ids[0][0], -1) == total
    assert size_after(2**63 - 1, 2**63 - 1) == 0
