"""Every public name of the connector has a docstring with an example, and the example runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import spark as connector
from anabranch.spark import pipelines
from simulation.harness.process import BrokerProcess
from tools.snippets import SPARK, documented, example_of

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(900)

ORDERS = 30


def test_every_public_name_has_an_example() -> None:
    assert [name for name in SPARK if not example_of(name).strip()] == []


def test_every_name_that_documents_import_is_public() -> None:
    found = {name for module, name in documented() if module.startswith("anabranch.spark")}
    assert "read_stream" in found
    assert found - {"pipelines"} <= set(SPARK)


def test_every_example_runs(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with anabranch.Client(broker.url) as client:
        values = [b'{"sequence": %d}' % n for n in range(ORDERS)]
        client.create_producer("orders").send_many(values, keys=[str(n % 7) for n in range(ORDERS)])
    (tmp_path / "events.csv").write_text("customer,amount,number\nanna,20,1\nben,5,2\n")
    pipelines.archive(spark, pipelines.TopicPlace("orders", broker.url), f"{tmp_path}/orders")
    failures: dict[str, BaseException] = {}
    for name in SPARK:
        code = example_of(name).replace("pulsar://127.0.0.1:6650", broker.url)
        for folder in ("/lake/", "/data/"):
            code = code.replace(folder, f"{tmp_path}/")
        try:
            run(code, name, spark)
        except Exception as error:
            failures[name] = error
    assert failures == {}


def run(code: str, name: str, spark: Any) -> None:
    names = {each: getattr(connector, each) for each in connector.__all__}
    names |= {each: getattr(anabranch, each) for each in anabranch.__all__}
    exec(compile(code, f"<example of {name}>", "exec"), names | {"pipelines": pipelines, "spark": spark})
