"""The costs of layout operations over Pulsar, from which docs/pulsar.md calculates the size of a cluster."""

from __future__ import annotations

import pytest

from anabranch.metadata.memory import MemoryTree
from benchmarks.engine.leading import SimControl, costs
from simulation.cluster.pulsar import SimPulsar


async def test_operations_take_as_many_admin_calls_and_writes_as_documented() -> None:
    control = SimControl(MemoryTree(), SimPulsar())
    await control.broker.start()
    found = await costs(control)
    await control.stop()
    calls = {name: found[f"{name}: calls"] for name in ("create", "split", "merge")}
    writes = {name: found[f"{name}: writes"] for name in ("create", "split", "merge")}
    assert calls == {"create": 7, "split": 16, "merge": 14}
    assert writes == {"create": 4, "split": 3, "merge": 3}
    assert found["record of 1 segment"] == pytest.approx(590, abs=10)
    assert found["record of 256 segments"] == pytest.approx(590 + 255 * 247, rel=0.02)
