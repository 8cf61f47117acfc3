"""The table of docs/interop.md against the cases that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "interop.md"
CASES = {
    "Python": (HERE, "test_*.py", r"^def (test_\w+)"),
    "Go": (HERE / "go" / "features", "main.go", r'^\t"([\w ]+)": +\w+,'),
    "Java 4.0.7": (HERE / "java_classic", "Features.java", r'FEATURES\.put\("([\w ]+)"'),
    "Java V5": (HERE / "java", "ScalableFeatures.java", r'FEATURES\.put\("([\w ]+)"'),
}
"""The files with the names of each client's cases."""


def cases(client: str) -> set[str]:
    folder, files, pattern = CASES[client]
    return {
        name for file in folder.rglob(files) for name in re.findall(pattern, file.read_text(), re.MULTILINE)
    }


def column(client: str) -> list[str]:
    rows = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    at = rows[0].index(client)
    return [row[at] for row in rows[1:]]


@pytest.mark.parametrize("client", CASES)
def test_each_cell_names_a_case_or_says_that_there_is_none(client: str) -> None:
    known = cases(client) | cases("Python")
    for cell in column(client):
        named = set(re.findall(r"`([^`]+)`", cell)) & known
        assert named or cell.startswith("none"), cell


@pytest.mark.parametrize("client", ["Go", "Java 4.0.7", "Java V5"])
def test_each_case_is_in_the_table(client: str) -> None:
    assert cases(client) <= set(re.findall(r"`([^`]+)`", " ".join(column(client))))
