"""Slow and greedy clients of each kind beside one that publishes and consumes; `make slow` has thousands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.harness.process import BrokerProcess
from tests.slow.clients import KINDS
from tests.slow.run import MEMORY_GROWTH_MAX, SlowEffort, measure

pytestmark = pytest.mark.timed

MakeBroker = Callable[..., BrokerProcess]

SHORT = SlowEffort(clients=100, seconds=2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_other_clients_are_served(make_broker: MakeBroker, kind: str) -> None:
    broker = make_broker().start()
    figures = measure(kind, SHORT, broker)
    # A machine with other work delays the canary too; a broker without turns delays it for many seconds.
    assert figures.during_s[0] < 1.0, figures
    assert figures.memory_bytes - figures.memory_before_bytes < MEMORY_GROWTH_MAX, figures
    assert broker.stop() == 0
