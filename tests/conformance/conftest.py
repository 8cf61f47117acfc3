"""Fixtures of the conformance suites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.ledger.storage import SegmentLog
from tests.conformance.ledger_hosts import NAME, FilesHost, MemoryHost, Run, SimHost, StorageHost


@pytest.fixture(
    params=["memory", pytest.param("files", marks=pytest.mark.real_time), "simulated disk"],
)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> StorageHost:
    if request.param == "memory":
        return MemoryHost()
    if request.param == "files":
        return FilesHost(tmp_path)
    return SimHost(request.getfixturevalue("loop"))


@pytest.fixture
async def run(host: StorageHost) -> AsyncIterator[Run]:
    run = Run(host)
    await run.storage.open()
    yield run
    await run.storage.close()


@pytest.fixture
async def log(run: Run) -> SegmentLog:
    return await run.storage.create(NAME)
