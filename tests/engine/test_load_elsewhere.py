"""The load of the engine tests on the embedded broker and on Pulsar's own scalable topics."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch import AsyncClient
from simulation.harness.process import BrokerProcess
from simulation.harness.pulsar.standalone import PulsarStandalone
from tests.harness.engine_load import EngineLoad
from tests.harness.pulsar import find_jars

SEED = int(os.environ.get("ENGINE_SEED", "1"))

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

SCALABLE = "5.0.0-M1"


async def test_the_embedded_broker_survives_the_load_and_its_own_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as broker:

        async def kill() -> None:
            broker.kill()
            broker.start()

        async with AsyncClient(broker.url) as client:
            load = EngineLoad(client, lambda: broker.http_url, "short", SEED)
            await load.run(6_000, 2_000, [kill, kill])
    assert load.faults == 2
    assert load.changes > 0


@pytest.mark.long
async def test_pulsar_with_scalable_topics_survives_the_load(tmp_path: Path) -> None:
    settings = {"scalableTopicAutoScaleEnabled": "false", "brokerDeduplicationEnabled": "true"}
    settings |= {"defaultRetentionTimeInMinutes": "60", "defaultRetentionSizeInMB": "100"}
    pulsar = PulsarStandalone(find_jars(SCALABLE), tmp_path / "pulsar", settings)
    try:
        pulsar.start()
        async with AsyncClient(pulsar.url) as client:
            load = EngineLoad(client, lambda: pulsar.http_url, "short", SEED)
            # A member that is behind by two generations reads them mixed there.
            load.ordered = False
            load.changes_max = 2
            await load.run(6_000, 2_000)
    finally:
        pulsar.kill()
    assert load.changes > 0
