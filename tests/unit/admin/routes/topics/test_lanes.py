"""The lanes of stuck keys over the admin API: listed, looked into, released and skipped."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.browsing import lanes as lane_reports
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.stuck_keys import (
    HELD,
    LANES,
    LOWER,
    STUCK,
    get_json,
    halves,
    of_stuck,
    park,
    parked_before_restart,
    slot_of,
    sticky,
    store_keys,
    stuck_key,
    subscription_of,
    values,
)
from tests.harness.wire import batch, settle, value_of


async def test_a_stuck_key_is_listed_with_its_reason_size_and_consumer(brokers: Brokers) -> None:
    await stuck_key(brokers)
    admin = Admin(brokers)
    (lane,) = await get_json(admin)
    assert lane["lane"] == str(slot_of(STUCK))
    assert lane["slot"] == slot_of(STUCK)
    assert lane["reason"] == "busy"
    assert lane["heldEntries"] == 5
    assert lane["heldBytes"] > 5 * len(f"{STUCK}:0")
    assert lane["waitsFor"] == "reader-0"
    assert lane["sampleKey"] == STUCK
    assert lane["log"] == HELD
    assert await get_json(admin, f"{LANES}/{lane['lane']}") == lane


@pytest.mark.brokers(lane_after_s=60.0)
async def test_a_short_wait_is_shown_by_its_slot_only(brokers: Brokers) -> None:
    one, _ = await halves(brokers)
    await store_keys(one, [STUCK])
    admin = Admin(brokers)
    assert await get_json(admin) == []
    assert (await get_json(admin, f"{LANES}/{slot_of(STUCK)}"))["heldEntries"] == 1


async def test_a_peek_shows_the_first_messages_and_delivers_nothing(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    messages = await get_json(admin, f"{LANES}/{slot_of(STUCK)}/messages?count=2")
    assert [message["payload"] for message in messages] == [f"{STUCK}:0", f"{STUCK}:1"]
    assert [message["key"] for message in messages] == [STUCK, STUCK]
    assert messages[0]["sizeBytes"] == len(f"{STUCK}:0")
    assert one.has(Delivery) == []
    assert (await get_json(admin, f"{LANES}/{slot_of(STUCK)}"))["heldEntries"] == 5
    one.flow(10)
    await settle()
    assert values(one) == of_stuck(*range(5))


async def test_a_peek_counts_messages_of_batches_and_leaves_acknowledged_ones_out(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers, count=0)
    one.publish(b"", 100, entry=batch([b"a", b"b", b"c"], 100, key=STUCK), messages=3)
    one.publish(b"", 103, entry=batch([b"d", b"e"], 103, key=STUCK), messages=2)
    for _ in range(2):
        await one.receipt()
    await settle()
    subscription = subscription_of(brokers)
    subscription.cursor.acknowledge_part(0, 0b101, 3)
    path = f"{LANES}/{slot_of(STUCK)}/messages"
    shown = await get_json(Admin(brokers), f"{path}?count=3")
    assert [message["payload"] for message in shown] == ["a", "c", "d"]
    assert [message["messageId"].rpartition(":")[2] for message in shown] == ["0", "2", "0"]


async def test_a_skip_of_the_last_messages_of_a_sealed_log_ends_it(brokers: Brokers) -> None:
    one, two = await stuck_key(brokers)
    two.acknowledge(*two.has(Delivery))
    admin = Admin(brokers)
    assert (await admin.ask("POST", LANES.replace("/subscription/s/lanes", "/terminate"))).status == 200
    await settle()
    assert two.has(pb.CommandReachedEndOfTopic) == []
    assert (await admin.ask("POST", f"{LANES}/{slot_of(STUCK)}/skip")).json == {"skippedEntries": 5}
    await settle()
    assert len(two.has(pb.CommandReachedEndOfTopic)) == 1
    assert len(one.has(pb.CommandReachedEndOfTopic)) == 1


async def test_a_long_payload_is_shortened(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers, count=0)
    one.publish(b"x" * 5000, 100, key=STUCK)
    await one.receipt()
    await settle()
    (message,) = await get_json(Admin(brokers), f"{LANES}/{slot_of(STUCK)}/messages")
    assert message["sizeBytes"] == 5000
    assert message["payload"] == "x" * 200


async def test_skipped_messages_never_reach_the_consumer(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    answer = await admin.ask("POST", f"{LANES}/{slot_of(STUCK)}/skip?count=2")
    assert answer.json == {"skippedEntries": 2}
    one.flow(10)
    await settle()
    assert values(one) == of_stuck(2, 3, 4)


async def test_a_skip_of_the_whole_lane_ends_it(brokers: Brokers) -> None:
    await stuck_key(brokers)
    admin = Admin(brokers)
    before = subscription_of(brokers).backlog
    answer = await admin.ask("POST", f"{LANES}/{slot_of(STUCK)}/skip")
    assert answer.json == {"skippedEntries": 5}
    assert await get_json(admin) == []
    assert subscription_of(brokers).backlog == before - 5
    again = await admin.ask("POST", f"{LANES}/{slot_of(STUCK)}/skip")
    assert again.status == 404


async def test_a_large_lane_is_skipped_in_slices(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_reports, "SKIP_ENTRIES", 2)
    one, _ = await stuck_key(brokers)
    answer = await Admin(brokers).ask("POST", f"{LANES}/{slot_of(STUCK)}/skip?count=3")
    assert answer.json == {"skippedEntries": 3}
    one.flow(10)
    await settle()
    assert values(one) == of_stuck(3, 4)


async def test_a_parked_lane_goes_on_after_its_release(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    admin = Admin(brokers)
    park(brokers, "three attempts failed")
    one.flow(10)
    await settle()
    assert one.has(Delivery) == []
    shown = await get_json(admin, f"{LANES}/{slot_of(STUCK)}")
    assert (shown["reason"], shown["note"]) == ("parked", "three attempts failed")
    assert (await admin.ask("POST", f"{LANES}/{slot_of(STUCK)}/release")).status == 204
    await settle()
    assert values(one) == of_stuck(*range(5))


async def test_a_key_that_a_consumer_parks_is_shown_with_its_note_and_released(brokers: Brokers) -> None:
    one, _ = await stuck_key(brokers)
    one.flow(2)
    first, second = await one.deliveries(2)
    ids = [pb.MessageIdData(ledgerId=first.ledger, entryId=first.entry)]
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, park="bad order")
    one.send(command)
    one.flow(10)
    await settle()
    await asyncio.sleep(2)
    admin = Admin(brokers)
    (lane,) = await get_json(admin)
    assert (lane["reason"], lane["note"], lane["heldEntries"]) == ("parked", "bad order", 5)
    assert one.has(Delivery) == []
    assert (await admin.ask("POST", f"{LANES}/{lane['lane']}/skip?count=1")).json == {"skippedEntries": 1}
    assert (await admin.ask("POST", f"{LANES}/{lane['lane']}/release")).status == 204
    await settle()
    assert values(one) == of_stuck(*range(1, 5))
    assert value_of(second) == f"{STUCK}:1".encode()


async def test_a_lane_that_waits_for_its_consumer_cannot_be_released(brokers: Brokers) -> None:
    await stuck_key(brokers)
    answer = await Admin(brokers).ask("POST", f"{LANES}/{slot_of(STUCK)}/release")
    assert answer.status == 409
    assert "reader-0" in answer.json["reason"]


async def test_a_parked_lane_is_listed_and_released_before_consumers_are_back(brokers: Brokers) -> None:
    await parked_before_restart(brokers, "three attempts failed")
    admin = Admin(brokers)
    (lane,) = await get_json(admin)
    assert (lane["reason"], lane["note"], lane["heldEntries"]) == ("parked", "three attempts failed", None)
    assert await get_json(admin, f"{LANES}/{lane['lane']}") == lane
    assert (await admin.ask("GET", f"{LANES}/{lane['lane']}/messages")).status == 409
    assert (await admin.ask("POST", f"{LANES}/{lane['lane']}/skip")).status == 409
    assert (await admin.ask("POST", f"{LANES}/{lane['lane']}/release")).status == 204
    assert [again["reason"] for again in await get_json(admin)] == ["no consumer"]
    back = await brokers.connect()
    await back.subscribe(HELD, "s", kind=pb.CommandSubscribe.Key_Shared, keySharedMeta=sticky(LOWER))
    await settle()
    assert values(back) == of_stuck(*range(5))


@pytest.mark.parametrize(
    ("method", "rest", "status"),
    [
        ("GET", "/1", 404),
        ("GET", "/x", 412),
        ("GET", "/0:1", 404),
        ("GET", "/1/messages", 404),
        ("POST", "/1/release", 404),
        ("POST", "/1/skip", 404),
        ("POST", f"/{slot_of(STUCK)}/skip?count=0", 412),
        ("GET", f"/{slot_of(STUCK)}/messages?count=-1", 412),
    ],
)
async def test_wrong_lanes_and_counts_are_refused(
    brokers: Brokers, method: str, rest: str, status: int
) -> None:
    await stuck_key(brokers)
    assert (await Admin(brokers).ask(method, LANES + rest)).status == status


async def test_an_unknown_subscription_has_no_lanes(brokers: Brokers) -> None:
    await stuck_key(brokers)
    assert (await Admin(brokers).ask("GET", LANES.replace("/s/", "/t/"))).status == 404


async def test_a_subscription_without_keys_has_no_lanes(brokers: Brokers) -> None:
    one = await brokers.connect()
    await one.subscribe(HELD, "s")
    assert await get_json(Admin(brokers)) == []


async def test_the_lanes_of_an_unknown_topic_name_the_topic(brokers: Brokers) -> None:
    answer = await Admin(brokers).ask("GET", "/admin/v2/scalable/public/default/none/subscriptions/s/lanes")
    assert (answer.status, answer.json["reason"]) == (404, "topic://public/default/none does not exist")
