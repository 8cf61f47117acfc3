"""Two workers and two tenants: one is far over its rate, the other does not notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.process.conftest import MakeBroker

pytestmark = pytest.mark.timed

RATE_BYTES = 200_000
ENTRY_BYTES = 1_000_000
"""Each entry of the noisy tenant costs five seconds of its rate, for which its connection waits."""

RUN_S = 6.0
NOTICED_S = 2.5
"""A request that waited behind the noisy tenant would take longer; a busy machine alone takes less."""

NOISY, QUIET = (TopicName.parse(f"topic://{tenant}/main/orders") for tenant in ("noisy", "quiet"))


@pytest.fixture
def broker(make_broker: MakeBroker) -> Iterator[BrokerProcess]:
    with (
        make_broker(workers=2, **{"auto_scale.enabled": "false"}) as process,
        AdminClient(process.http_url) as admin,
    ):
        for name in (NOISY, QUIET):
            admin.create_tenant(name.tenant)
            admin.create_namespace(name.namespace_name)
            admin.create_topic(name, 4)
        assert run(process, "set", "noisy", f"publishRate=-1,{RATE_BYTES}", "maxProducers=100") == 0
        yield process


def run(broker: BrokerProcess, action: str, *words: str) -> int:
    """Run `anabranch quotas`."""
    return main(["quotas", action, *words, "--admin-url", broker.http_url])


async def make_noise(url: str, number: int) -> None:
    """Publish as much as the broker takes, over a connection of its own."""
    async with AsyncClient(url) as client:
        producer = await client.create_producer(str(NOISY), send_timeout=0)
        for count in range(1_000_000):
            await producer.enqueue(b"x" * ENTRY_BYTES, key=f"{number}-{count}")


async def latencies(url: str) -> list[float]:
    """Send one message after the other; return the seconds that each took."""
    took: list[float] = []
    async with AsyncClient(url) as client:
        producer = await client.create_producer(str(QUIET))
        end_s = time.monotonic() + RUN_S
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            await producer.send(b"x" * 100, key=f"key-{len(took)}")
            took.append(time.monotonic() - began_s)
            await asyncio.sleep(0.01)
    return took


async def test_a_tenant_over_its_rate_leaves_another_tenant_alone(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    noise = [asyncio.ensure_future(make_noise(broker.url, number)) for number in range(4)]
    took = sorted(await latencies(broker.url))
    with AdminClient(broker.http_url) as admin:
        stored = await asyncio.to_thread(admin.topic_stats, NOISY)
        elapsed_s = time.monotonic() - began_s
        shown = await asyncio.to_thread(admin.why, NOISY)
        # Without its quota the noisy tenant goes on at once, on both workers, so its producers can close.
        assert await asyncio.to_thread(run, broker, "show", "noisy") == 0
        assert await asyncio.to_thread(run, broker, "remove", "noisy", "publishRate", "--yes") == 0
    assert not any(task.done() for task in noise)
    for task in noise:
        task.cancel()
    await asyncio.wait(noise)
    p99_s = took[len(took) * 99 // 100]
    assert p99_s < NOTICED_S, f"p99 {p99_s:.3f} s, p50 {took[len(took) // 2]:.3f} s of {len(took)}"
    assert len(took) > 100
    # Each producer passes the rate by one entry in each of the four segments, and then waits for credit.
    assert 0 < stored.storage_size <= RATE_BYTES * (elapsed_s + 1) + 4 * 4 * (ENTRY_BYTES + 1000)
    assert any("publishRate of tenant noisy" in text for text in shown.troubles.values()), shown.troubles
    lines = capsys.readouterr().out.splitlines()
    assert "maxProducers: 4 of 100" in lines
    assert f"publishRate: {RATE_BYTES} bytes a second" in lines
