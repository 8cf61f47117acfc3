"""The syntax of ANABRANCH_FAILPOINTS."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.failpoints import FailpointReachedError, ProcessFailpoints


async def test_a_step_that_is_named_fails_every_time() -> None:
    failpoints = ProcessFailpoints.from_text("split.sealed=raise, merge.sealed=raise")
    for _ in range(2):
        await failpoints.reach("split.created")
        with pytest.raises(FailpointReachedError, match=r"split\.sealed"):
            await failpoints.reach("split.sealed")


async def test_a_file_is_looked_at_when_a_step_is_reached_and_serves_once(tmp_path: Path) -> None:
    file = tmp_path / "failpoints"
    one, other = (ProcessFailpoints.from_text(f"@{file}") for _ in range(2))
    await one.reach("split.sealed")
    file.write_text("split.sealed=raise")
    await one.reach("split.created")
    with pytest.raises(FailpointReachedError):
        await other.reach("split.sealed")
    await one.reach("split.sealed")
    assert not file.exists()


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="kill, stop or raise"):
        ProcessFailpoints.from_text("split.sealed=explode")
