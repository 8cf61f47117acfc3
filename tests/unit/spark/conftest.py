"""Fixtures of the Spark tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.files import FileTopic


@pytest.fixture
def topic(tmp_path: Path) -> FileTopic:
    return FileTopic(tmp_path, "orders").create()
