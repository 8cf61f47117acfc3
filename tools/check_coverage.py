"""Compare the measured coverage of each package with its floor in `tools/coverage_floors.txt`.

`make test COVERAGE=1` writes build/coverage.json and calls this check. A floor is a whole number of per cent
of the lines of a package that the tests run. Floors may only rise: `--renew` raises them.
Code that runs in processes that tests start, such as Spark's workers, is not measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURED = Path("build/coverage.json")
FLOORS = Path("tools/coverage_floors.txt")
PREFIX = "src/anabranch/"


def package_of(path: str) -> str:
    """Return the first folder below the package, or `root` for a module beside the folders."""
    folder, slash, _ = path.removeprefix(PREFIX).partition("/")
    return folder if slash else "root"


def percentages(files: Mapping[str, Any]) -> dict[str, float]:
    """Return the coverage of each package from the files of coverage's JSON report."""
    covered: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, report in files.items():
        package = package_of(path)
        covered[package] += report["summary"]["covered_lines"]
        lines[package] += report["summary"]["num_statements"]
    return {package: 100 * covered[package] / count for package, count in sorted(lines.items()) if count}


def load(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {package: int(floor) for package, floor in rows}


def dump(floors: Mapping[str, int]) -> str:
    head = (
        "# Lines that tests must run, in per cent of each package; see check_coverage.py. Floors only rise."
    )
    return "\n".join([head, *(f"{package} {floor}" for package, floor in sorted(floors.items())), ""])


def complaints(measured: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """Return what has to change, one line each."""
    low = [
        f"{package}: tests run {measured[package]:.1f} % of the lines; the floor is {floor} %"
        for package, floor in sorted(floors.items())
        if package in measured and measured[package] < floor
    ]
    gone = [
        f"{package}: no such package; remove its floor" for package in sorted(floors.keys() - measured.keys())
    ]
    new = [
        f"{package}: no floor yet (--renew sets it)" for package in sorted(measured.keys() - floors.keys())
    ]
    return low + gone + new


def raised(measured: Mapping[str, float], floors: Mapping[str, int]) -> dict[str, int]:
    """Return the floors for what was measured, never below the floors of today."""
    return {package: max(int(value), floors.get(package, 0)) for package, value in measured.items()}


def main(arguments: list[str]) -> int:
    measured = percentages(json.loads(MEASURED.read_text())["files"])
    floors = load(FLOORS.read_text()) if FLOORS.exists() else {}
    if "--renew" in arguments:
        floors = raised(measured, floors)
        FLOORS.write_text(dump(floors))
    for package, value in measured.items():
        print(f"{value:6.1f} %  {package}")
    lines = complaints(measured, floors)
    print("\n".join(lines) or "The coverage of each package is at or above its floor.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
