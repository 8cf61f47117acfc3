from __future__ import annotations

import asyncio
import logging

import pytest

from anabranch.transport.seldom import PERIOD_S, Seldom


async def test_a_few_warnings_are_written_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"), times=2)
    for number in range(100):
        seldom.warning("trouble %d", number)
    assert [record.getMessage() for record in caplog.records] == ["trouble 0", "trouble 1"]
    await asyncio.sleep(PERIOD_S)
    caplog.clear()
    seldom.warning("trouble %d", 100)
    await asyncio.sleep(PERIOD_S)
    seldom.warning("trouble %d", 101)
    assert [record.getMessage() for record in caplog.records] == [
        "98 more warnings like the last one were not written",
        "trouble 100",
        "trouble 101",
    ]
