"""Each scenario file gives the trace that it contains; `--renew-scenarios` writes the traces again."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.scenarios.script import run_script

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_gives_its_trace(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    traced = run_script(expected)
    if request.config.getoption("--renew-scenarios", default=False):
        path.write_text(traced)
        return
    difference = "\n".join(unified_diff(expected.splitlines(), traced.splitlines(), "expected", "traced"))
    if difference:
        pytest.fail(f"{difference}\nIf this is meant, run pytest with --renew-scenarios.", pytrace=False)
