"""Trimming and truncation of classic topics over HTTP."""

from __future__ import annotations

from functools import partial

import pytest

from anabranch.ledger.memory import MemoryStorage
from tests.harness.admin import CLASSIC, Admin
from tests.harness.cluster import Brokers

NAME = "persistent://public/default/classic"
SUB = f"{CLASSIC}/subscription/s"

pytestmark = pytest.mark.brokers(storage=partial(MemoryStorage, ledger_entries_max=2), segment_retention_s=0)


@pytest.fixture
async def filled(brokers: Brokers) -> Admin:
    """The admin API of a broker with seven messages in ledgers of two, and a subscription before them."""
    client, admin = await brokers.connect(), Admin(brokers)
    await client.producer(NAME)
    assert (await admin.ask("PUT", SUB, "earliest")).status == 204
    await client.publish_all([b"%d" % number for number in range(7)])
    client.close()
    return admin


async def stored_and_pending(admin: Admin) -> tuple[int, int]:
    """The number of stored entries, and of those that the subscription has not acknowledged."""
    stored = (await admin.ask("GET", f"{CLASSIC}/internalStats")).json["numberOfEntries"]
    return stored, (await admin.ask("GET", f"{CLASSIC}/stats")).json["subscriptions"]["s"]["msgBacklog"]


async def test_trimming_drops_the_acknowledged_ledgers_that_retention_does_not_keep(filled: Admin) -> None:
    assert (await filled.ask("POST", f"{SUB}/skip/5")).status == 204
    assert (await filled.ask("POST", f"{CLASSIC}/trim")).status == 204
    assert await stored_and_pending(filled) == (3, 2)


async def test_trimming_keeps_the_messages_of_the_retention(filled: Admin) -> None:
    kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    assert (await filled.ask("POST", "/admin/v2/namespaces/public/default/retention", kept)).status == 204
    assert (await filled.ask("POST", f"{SUB}/skip_all")).status == 204
    assert (await filled.ask("POST", f"{CLASSIC}/trim")).status == 204
    assert await stored_and_pending(filled) == (7, 0)


async def test_truncation_drops_all_ledgers_but_the_last(filled: Admin) -> None:
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert (await filled.ask("POST", "/admin/v2/namespaces/public/default/retention", kept)).status == 204
    assert (await filled.ask("DELETE", f"{CLASSIC}/truncate")).status == 204
    assert await stored_and_pending(filled) == (1, 0)
