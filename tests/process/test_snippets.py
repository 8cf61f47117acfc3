"""Each block of code in README.md and docs runs, here or in the test that `OTHER_TESTS` names.

`NOT_RUN` has the exceptions, with their reasons. A block of Python may use the names of `tools/snippets.py`.
A block without a kind, or of kind `text`, shows output and has no commands.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import AdminClient, AsyncClient, Backoff, DeadLetter, Message
from anabranch.cli.main import main
from simulation.harness.process import BrokerProcess
from tools.snippets import DOCUMENTS, ROOT, Snippet, snippets

PATIENCE_S = 60.0
SHOWN = ("", "text")

OTHER_TESTS = {
    ("docs/admin.md", "python"): "tests/process/test_admin_client.py",
    ("docs/bench.md", "sh"): "tests/process/cli/test_bench.py",
    ("docs/pipelines.md", "bash"): "tests/spark/test_skew_and_commands.py",
    ("docs/pipelines.md", "python"): "tests/spark/test_pipeline_guide.py",
    ("docs/pipelines.md", "sh"): "tests/spark/test_pipeline_guide.py",
    ("docs/spark.md", "python"): "tests/spark/test_guide.py",
    ("docs/spark.md", "sql"): "tests/spark/test_guide.py",
    ("docs/telemetry.md", "python"): "tests/process/test_telemetry.py",
    ("docs/testing-applications.md", "python"): "tests/process/test_local_broker.py",
    ("docs/consuming.md", "Handlers of an application"): "tests/unit/test_apps.py",
    ("docs/security.md", "End-to-end encryption"): "tests/process/test_encryption.py",
    ("docs/security.md", "TLS in five minutes"): "tests/process/test_security_guide.py",
    ("docs/security.md", "Tokens in five minutes"): "tests/process/test_security_guide.py",
}
"""By document, and by kind or section, the test that runs the blocks."""

NOT_RUN = {
    "make demo FAST=1": "CI runs both commands on every change",
    "pip install '.[server]'": "pip needs a network; every test of this folder starts `anabranch serve`",
    "python -m venv job": "pip needs a network, and spark-submit a cluster",
    "anabranch control ": "needs a cluster of Apache Pulsar and ZooKeeper; `make engine` starts these",
    "htpasswd ": "a command of Apache that need not be installed",
}
"""By the first words of a block, why no test runs it."""


def place_of(snippet: Snippet) -> str | None:
    """The other test that runs a block; None for one that runs here."""
    if snippet.document == "README.md" and "spark.readStream" in snippet.text:
        return "tests/spark/test_guide.py"
    keys = ((snippet.document, snippet.kind), (snippet.document, snippet.section))
    return next((OTHER_TESTS[key] for key in keys if key in OTHER_TESTS), None)


def reason_of(snippet: Snippet) -> str | None:
    return next((why for words, why in NOT_RUN.items() if snippet.text.startswith(words)), None)


ALL = [snippet for document in DOCUMENTS for snippet in snippets(document)]
HERE = [
    snippet
    for snippet in ALL
    if snippet.kind not in SHOWN and place_of(snippet) is None and reason_of(snippet) is None
]


def test_blocks_that_show_output_have_no_commands() -> None:
    shown = [snippet for snippet in ALL if snippet.kind in SHOWN]
    commands = ("anabranch ", "pip ", "make ", "python ", "import ", "from ")
    assert [one.title for one in shown for line in one.text.splitlines() if line.startswith(commands)] == []


def test_every_other_test_reads_its_document_and_every_reason_is_needed() -> None:
    for (document, _), path in OTHER_TESTS.items():
        assert Path(document).name in (ROOT / path).read_text(), path
    used = {words for words in NOT_RUN for one in ALL if one.text.startswith(words)}
    assert used == set(NOT_RUN)
    assert {one.kind for one in HERE} == {"python", "sh"}
    assert len(HERE) >= 14


@dataclass
class Reader:
    """The reader of the documents: a broker, a folder, and the names that blocks of Python use."""

    broker: BrokerProcess
    folder: Path

    def local(self, snippet: Snippet) -> str:
        """The text on the addresses of this broker, and on topics of its own."""
        text = snippet.text.replace("pulsar://127.0.0.1:6650", self.broker.url)
        text = text.replace("http://127.0.0.1:8080", self.broker.http_url)
        return text.replace('"orders"', f'"{topic_of(snippet)}"')

    def run_python(self, snippet: Snippet) -> None:
        code = compile(self.local(snippet), snippet.title, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {name: getattr(anabranch, name) for name in anabranch.__all__}
        names |= {"dataclass": dataclass, "__name__": "__main__"}
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(self._run_async(snippet, code, names))
        else:
            exec(code, names)

    async def _run_async(self, snippet: Snippet, code: Any, names: dict[str, Any]) -> None:
        handled, stored = asyncio.Event(), []

        async def charge(key: str | None, data: bytes) -> None:
            assert (key, data) == ("alice", b"one tea")
            handled.set()

        async with AsyncClient(self.broker.url) as client, asyncio.timeout(PATIENCE_S):
            names |= {"client": client, "charge": charge, "results": [1]}
            names["store"] = lambda results, data: stored.append(data)
            names["consumer"] = await self._consumer(client, snippet)
            running = asyncio.ensure_future(eval(code, names))
            if ".run(" not in snippet.text:
                await running
                assert stored or "store(" not in snippet.text
                return
            # A run has no end; the block is right once its handler gets a message.
            producer = await client.create_producer(topic_of(snippet))
            while not handled.is_set():
                await producer.send(b"one tea", key="alice")
                await asyncio.wait([running, asyncio.ensure_future(handled.wait())], timeout=0.2)
                assert not running.done(), running.exception()
            running.cancel()
            await asyncio.wait([running])

    async def _consumer(self, client: AsyncClient, snippet: Snippet) -> Any:
        """The consumer that a block uses and does not open."""
        if "consumer = " in snippet.text or "consumer" not in snippet.text:
            return None
        if "checkpoint()" in snippet.text:
            return await client.create_checkpoint_consumer(topic_of(snippet), group="g")
        return await client.subscribe_stream(topic_of(snippet), "billing")

    def run_line(self, line: str) -> None:
        words = shlex.split(line.replace("./", f"{self.folder}/"), comments=True)
        assert words.pop(0) == "anabranch", line
        if "asks first" in line:
            words.append("--yes")
        if words[:2] == ["secret", "rotate"]:
            words += ["--overlap", "0"]
        # `doctor` finds weak points in an open broker.
        assert main(words) in ((0, 1) if words[0] == "doctor" else (0,)), line


def topic_of(snippet: Snippet) -> str:
    return f"{snippet.document.replace('/', '-').removesuffix('.md')}-{snippet.line}-orders"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    settings = {"auto_scale.enabled": "false", "lane_after_s": "0.1"}
    with BrokerProcess(folder / "anabranch-data", settings) as broker:
        with AdminClient(broker.http_url) as admin:
            admin.create_tenant("acme")
            admin.create_namespace("acme/orders")
            admin.create_topic("topic://acme/orders/paid")
            admin.create_tenant("shop")
            admin.create_namespace("shop/eu")
        yield Reader(broker, folder)


@pytest.fixture(autouse=True)
def _terminal(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_URL", reader.broker.url)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", reader.broker.http_url)


@pytest.mark.parametrize("snippet", [one for one in HERE if one.kind == "python"], ids=lambda one: one.title)
def test_python_runs(reader: Reader, snippet: Snippet) -> None:
    reader.run_python(snippet)


def commands(section: str, document: str) -> list[Snippet]:
    """The blocks of commands of a section."""
    return [one for one in HERE if (one.document, one.section, one.kind) == (document, section, "sh")]


def test_the_first_commands_run(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = commands("A first message in five minutes", "README.md")
    for line in first.text.splitlines():
        reader.run_line(line)
    printed = capsys.readouterr().out
    assert "one tea" in printed
    assert "epoch 1" in printed


def test_a_copy_of_the_data_is_made_checked_and_repaired(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, checking = (one.text for one in HERE if one.document == "docs/operations.md")
    backup, restore, serve = copying.replace("/backups/", f"{tmp_path}/").splitlines()
    reader.run_line(backup)
    reader.run_line(restore)
    assert serve.startswith("anabranch serve --data ./restored-data")
    with BrokerProcess(reader.folder / "restored-data"):
        pass
    for line in checking.replace("./anabranch-data", "./restored-data").splitlines():
        reader.run_line(line)


def test_the_commands_of_the_security_guide_run(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader.folder)
    for name in ("root", "boss"):
        # An open broker looks at no token.
        (reader.folder / f"{name}.token").write_text("token")
    (reader.folder / "broker.conf").write_text("")
    blocks = [one for one in HERE if (one.document, one.kind) == ("docs/security.md", "sh")]
    assert len(blocks) == 4
    for block in blocks:
        for line in reader.local(block).replace("shop", "market").splitlines():
            reader.run_line(line)
            if line.startswith("anabranch namespace create market/prod"):
                reader.run_line("anabranch topic create topic://market/prod/orders")


@asynccontextmanager
async def parked(reader: Reader, topic: str) -> AsyncIterator[Callable[[], Any]]:
    """A topic with a parked key; yields a call that waits until it is parked, and returns its lane."""

    readers: set[str] = set()
    letters, stop = DeadLetter(1, policy="park"), asyncio.Event()

    def handler(name: str) -> Callable[[Message[bytes]], Awaitable[None]]:
        async def handle(message: Message[bytes]) -> None:
            readers.add(name)
            if message.key == "alice":
                raise ValueError("broken")

        return handle

    with AdminClient(reader.broker.http_url) as admin:
        async with AsyncClient(reader.broker.url) as client, asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(admin.create_topic, topic)
            runs = []
            for name in ("a", "b"):
                consumer = await client.subscribe_stream(topic, "billing", name=name, dead_letter=letters)
                run = consumer.run(handler(name), retry=Backoff(0.01, 0.01), stop=stop)
                runs.append(asyncio.ensure_future(run))
            producer = await client.create_producer(topic, batching=False)
            # The segment has lanes once both consumers share it by buckets.
            while readers != {"a", "b"}:
                await producer.send_many([b"other"] * 40, keys=[f"key-{number}" for number in range(40)])
            for number in range(40):
                await producer.send(b"%d" % number, key="alice")

            async def lane() -> str:
                while True:
                    found = await asyncio.to_thread(admin.lanes, topic, "billing")
                    if names := [str(one.lane) for one in found if one.reason == "parked"]:
                        return names[0]
                    await asyncio.sleep(0.05)

            yield lane
            stop.set()
            await asyncio.gather(*runs)


async def test_the_commands_for_hot_keys_run(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    looking, moving, ending = (one for one in HERE if one.document == "docs/hot-keys.md")
    async with parked(reader, "hot") as lane:
        for block in (looking, ending):
            for line in block.text.splitlines():
                named = line.replace("orders", "hot").replace("0:17", await lane())
                await asyncio.to_thread(reader.run_line, named)
        assert "alice" in capsys.readouterr().out
    for number, line in enumerate(moving.text.splitlines()):
        reader.run_line(f"anabranch topic create wide-{number} --segments 4")
        async with AsyncClient(reader.broker.url) as client:
            producer = await client.create_producer(f"wide-{number}", batching=False)
            await producer.send_many([b"traffic"] * 2000, keys=[f"key-{n}" for n in range(2000)])
        reader.run_line(line.replace("orders", f"wide-{number}"))
