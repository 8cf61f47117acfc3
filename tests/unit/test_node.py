"""The parts of a broker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.config import BrokerConfig
from anabranch.node import cache_of_each_store


@pytest.mark.parametrize(("workers", "found", "expected"), [(1, 0, 64), (4, 0, 16), (1, 8, 8), (4, 2, 16)])
def test_all_stores_together_keep_no_more_in_memory_than_is_set(
    tmp_path: Path, workers: int, found: int, expected: int
) -> None:
    for number in range(found):
        (tmp_path / "stores" / str(number)).mkdir(parents=True)
    config = BrokerConfig(data=str(tmp_path), workers=workers, cache_bytes=64 * 2**20)
    assert cache_of_each_store(config) == expected * 2**20
