"""A real broker for the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testing.process import BrokerProcess
from tests.interop.building import java_classpath
from tests.interop.features import FAST, FORMS
from tests.spark.conftest import spark

__all__ = ["spark"]


@pytest.fixture(params=[1] if FAST else [1, 2], ids=FORMS.get)
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"workers": request.param}) as process:
        yield process


@pytest.fixture(scope="session")
def classpath() -> str:
    """The classpath of the Java side."""
    return java_classpath()
