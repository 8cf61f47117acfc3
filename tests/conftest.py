"""Settings of all tests, and the servers that several suites share."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

from tests.harness.guarded import guarded
from tests.harness.pulsar import cluster, small_engine, zookeeper

pytest_plugins = ["simulation.plugin"]

__all__ = ["cluster", "guarded", "small_engine", "zookeeper"]

# The same examples in every run, however slow the machine is; `--hypothesis-profile default` draws others.
settings.load_profile("ci")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Only the log lines of this test: objects left by earlier tests are collected, and log, before it."""
    gc.collect()
    return caplog
