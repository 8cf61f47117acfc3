from __future__ import annotations

from typing import Any

from tools.check_coverage import complaints, dump, load, percentages, raised


def report(covered: int, lines: int) -> dict[str, Any]:
    return {"summary": {"covered_lines": covered, "num_statements": lines}}


def test_files_of_a_package_count_together() -> None:
    files = {
        "src/anabranch/client/api.py": report(9, 10),
        "src/anabranch/client/produce/producer.py": report(0, 10),
        "src/anabranch/aio.py": report(1, 4),
        "src/anabranch/py.py": report(0, 0),
    }
    assert percentages(files) == {"client": 45.0, "root": 25.0}


def test_a_package_below_its_floor_is_refused() -> None:
    assert complaints({"client": 44.9, "model": 99.0}, {"client": 45, "model": 99}) == [
        "client: tests run 44.9 % of the lines; the floor is 45 %"
    ]


def test_a_new_package_needs_a_floor_and_a_floor_needs_its_package() -> None:
    assert complaints({"engine": 80.0}, {"bench": 70}) == [
        "bench: no such package; remove its floor",
        "engine: no floor yet (--renew sets it)",
    ]


def test_renewing_raises_floors_and_never_lowers_them() -> None:
    assert raised({"client": 50.9, "model": 90.0}, {"client": 45, "model": 95}) == {"client": 50, "model": 95}


def test_the_floors_can_be_read_back() -> None:
    assert load(dump({"client": 50, "model": 95})) == {"client": 50, "model": 95}
