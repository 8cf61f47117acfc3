"""The snippets of docs/spark.md and the cells of the notebook, executed against a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from simulation.harness.process import BrokerProcess
from tools.snippets import snippets

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
URL = "pulsar://127.0.0.1:6650"
ORDERS = 250

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as process:
        with anabranch.Client(process.url) as client:
            producer = client.create_producer("orders")
            rows = [{"id": n, "customer": f"c{n % 3}", "amount": n / 2} for n in range(ORDERS)]
            keys = [str(n % 7) for n in range(ORDERS)]
            producer.send_many([json.dumps(row).encode() for row in rows], keys=keys)
        yield process


def test_the_snippets_of_the_guide_run_as_they_stand(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    blocks = BLOCK.findall(text)
    assert {language for language, _ in blocks} == {"python", "sql"}
    client = anabranch.Client(broker.url)
    consumer = client.create_checkpoint_consumer("orders", start=anabranch.Checkpoint.earliest())
    names: dict[str, Any] = {"url": broker.url, "consumer": consumer}
    try:
        for language, block in blocks:
            local = block.replace(URL, broker.url).replace("/data/", f"{tmp_path}/")
            if language == "python":
                exec(compile(local, "docs/spark.md", "exec"), names)
                # A reader of the guide looks at the progress of a query later.
                names["query"].processAllAvailable()
            else:
                for statement in filter(str.strip, local.split(";\n")):
                    spark.sql(statement).collect()
        assert spark.sql("SELECT count(*) AS n FROM orders").first().n >= ORDERS
        check_readme(names, broker)
    finally:
        client.close()
        for query in spark.streams.active:
            query.stop()
        spark.sql("DROP TABLE IF EXISTS orders")
        spark.sql("DROP VIEW IF EXISTS orders_view")


def check_readme(names: dict[str, Any], broker: BrokerProcess) -> None:
    """Run the block of README.md, which shows the columns of a stream."""
    (block,) = (one.text for one in snippets("README.md") if "spark.readStream" in one.text)
    exec(compile(block.replace(URL, broker.url), "README.md", "exec"), names)
    assert names["stream"].isStreaming
    columns = re.findall(r"# (.*)", block)[0].split(", ")
    assert set(columns) <= set(names["stream"].columns)


def test_the_notebook_runs_from_top_to_bottom(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    notebook = json.loads((ROOT / "examples" / "notebooks" / "orders.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "a notebook is committed without outputs"
            exec(compile("".join(cell["source"]), "orders.ipynb", "exec"), names)
    assert names["totals"]["orders"].sum() == ORDERS
    assert sorted(names["amounts"]["amount"]) == sorted(names["totals"]["amount"])
    assert names["behind"]["behind"].tolist()[-1] == 0
    assert names["behind"]["rows"].sum() == ORDERS
