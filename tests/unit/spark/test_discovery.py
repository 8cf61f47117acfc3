from __future__ import annotations

import builtins
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_anabranch
from anabranch.spark import AnabranchSource


def printed(code: str) -> str:
    """The output of this code in a new interpreter."""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_spark_finds_the_source_by_its_rule() -> None:
    from pyspark.sql.datasource import DataSource

    assert AnabranchSource.name() == "anabranch"
    assert issubclass(AnabranchSource, DataSource)
    assert vars(pyspark_anabranch).get("DefaultSource") is None, "no module is loaded before its use"
    assert getattr(pyspark_anabranch, "DefaultSource") is AnabranchSource  # noqa: B009


def test_a_source_that_cannot_be_loaded_is_absent_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # One module that raises would disable the discovery of every other data source.
    usual: Callable[..., Any] = builtins.__import__

    def without_source(name: str, *rest: Any, **more: Any) -> Any:
        if name == "anabranch.spark.source.data_source":
            raise RuntimeError("no Arrow here")
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_source)
    assert not hasattr(pyspark_anabranch, "DefaultSource")


def test_importing_the_package_imports_neither_spark_nor_the_client() -> None:
    code = (
        "import sys, pyspark_anabranch, anabranch.spark\n"
        "print([m for m in ('pyspark', 'pyarrow', 'numpy', 'anabranch.client') if m in sys.modules])"
    )
    assert printed(code) == "[]"


def test_the_extra_keeps_to_a_pandas_that_spark_supports() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "pandas>=2.2,<3" in project["project"]["optional-dependencies"]["spark"]


def test_unknown_names_are_unknown() -> None:
    import anabranch.spark

    for module in (pyspark_anabranch, anabranch.spark):
        with pytest.raises(AttributeError):
            module.nothing  # noqa: B018


def test_a_process_that_plans_a_query_loads_neither_producers_nor_consumers() -> None:
    code = (
        "import sys, anabranch.spark.source.data_source, anabranch.spark.service\n"
        "parts = ('api', 'produce', 'consume', 'net.schemas')\n"
        "print([part for part in parts if f'anabranch.client.{part}' in sys.modules])"
    )
    assert printed(code) == "[]"


def test_a_task_that_reads_does_not_load_pandas() -> None:
    code = (
        "import sys\n"
        "from anabranch.model.ranges import FULL\n"
        "from anabranch.protocol.entry.batches import MessageBatch\n"
        "from anabranch.spark.decide.source.topology import Slice\n"
        "from anabranch.spark.decode.entries import open_entry\n"
        "from anabranch.spark.decode.rows import RowBuilder\n"
        "from anabranch.spark.source.data_source import source_schema\n"
        "batch = MessageBatch()\n"
        "batch.add(b'v', 'k', 0)\n"
        "batch.add(b'v', None, 1)\n"
        "schema = source_schema(event_time=True, headers=False, key_hash=True)\n"
        "rows = RowBuilder(schema, 'orders')\n"
        "rows.add(open_entry(batch.build('p', 1), 2**20), 0, Slice('orders', 0, FULL, 0, 2), None)\n"
        "print(rows.take().num_rows, 'pandas' in sys.modules)"
    )
    assert printed(code) == "2 False"
