"""The parts of a broker process."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.config import BrokerConfig
from anabranch.errors import MissingDataError
from anabranch.node import cache_of_each_store, prepare_metadata


@pytest.mark.parametrize(("workers", "found", "expected"), [(1, 0, 64), (4, 0, 16), (1, 8, 8), (4, 2, 16)])
def test_all_stores_together_keep_no_more_in_memory_than_is_set(
    tmp_path: Path, workers: int, found: int, expected: int
) -> None:
    for number in range(found):
        (tmp_path / "stores" / str(number)).mkdir(parents=True)
    config = BrokerConfig(data=str(tmp_path), workers=workers, cache_bytes=64 * 2**20)
    assert cache_of_each_store(config) == expected * 2**20


def test_a_start_is_refused_when_there_are_stores_but_no_metadata(tmp_path: Path) -> None:
    config = BrokerConfig(data=str(tmp_path))
    store = tmp_path / "stores" / "0"
    store.mkdir(parents=True)
    (store / "LOCK").touch()
    prepare_metadata(config)
    (store / "catalog").touch()
    prepare_metadata(config)
    (tmp_path / "metadata.db").unlink()
    prepare_metadata(config)
    for file in tmp_path.glob("metadata*/*"):
        file.unlink()
    (tmp_path / "metadata.db").unlink()
    with pytest.raises(MissingDataError):
        prepare_metadata(config)
