"""One connection of our client with a producer that publishes as fast as it can, on a real broker."""

from __future__ import annotations

import pytest

from anabranch.admin.client import AdminClient
from benchmarks.broker.flood import FLOODED, RATE_BYTES, measure
from benchmarks.results import percentile_ms
from tests.process.conftest import MakeBroker

pytestmark = pytest.mark.timed

NOTICED_MS = 1000.0
"""The goal of 50 ms is measured by `python -m benchmarks flood`; a busy machine gets twenty times as long."""


async def test_requests_do_not_wait_for_a_flood_on_their_connection(make_broker: MakeBroker) -> None:
    with make_broker() as broker:
        found = await measure(broker.url, 100)
    assert found.messages > 0
    assert percentile_ms(found.acks_s, 90) < NOTICED_MS
    assert percentile_ms(found.look_ups_s, 90) < NOTICED_MS


async def test_requests_do_not_wait_for_a_producer_over_its_rate(make_broker: MakeBroker) -> None:
    with make_broker() as broker:
        with AdminClient(broker.http_url) as admin:
            admin.create_topic(FLOODED)
            admin.set_quotas(str(FLOODED), {"publishRate": {"publishThrottlingRateInByte": RATE_BYTES}})
        found = await measure(broker.url, 100)
    assert percentile_ms(found.acks_s, 90) < NOTICED_MS
    assert percentile_ms(found.look_ups_s, 90) < NOTICED_MS
    # The bucket of the rate holds the bytes of one second, which the flood has used before.
    assert found.messages * 100 < RATE_BYTES * (found.seconds + 1)
