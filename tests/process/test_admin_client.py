"""The admin clients on a real broker: the examples of their docstrings, and typed errors."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import AdminClient, AsyncAdminClient, Client
from anabranch.admin.models.schemas import PostedSchema
from anabranch.admin.models.topics import TopicStats
from anabranch.errors import (
    ConflictError,
    ConnectError,
    InvalidConfigurationError,
    InvalidNameError,
    NotFoundError,
)
from simulation.harness.process import BrokerProcess
from tests.harness.public import methods

KINDS = AdminClient, AsyncAdminClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as started:
        yield started


def examples(kind: type) -> list[doctest.Example]:
    """The examples of the methods in the order of the source, then that of the class."""
    families = [
        family for family in inspect.getmro(kind) if family.__module__.startswith("anabranch.admin.client.")
    ]
    texts = [
        inspect.getdoc(method) or ""
        for family in families[1:]
        for method in vars(family).values()
        if inspect.isfunction(method)
    ]
    closing = "\n>>> await admin.delete_topic('orders')\n\n" + (inspect.getdoc(kind) or "")
    if kind is AdminClient:
        closing = closing.replace("await ", "")
    return [one for text in (*texts, closing) for one in doctest.DocTestParser().get_examples(text)]


async def run_example(example: doctest.Example, names: dict[str, Any]) -> str:
    """Run an example, which may await, and return the text it shows."""
    shown = io.StringIO()
    for mode in ("eval", "exec"):
        try:
            code = compile(example.source, "<example>", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError:
            if mode == "exec":
                raise
            continue
        with contextlib.redirect_stdout(shown):
            result = eval(code, names)
            if inspect.isawaitable(result):
                result = await result
        if mode == "eval" and result is not None:
            print(repr(result), file=shown)
        break
    return shown.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_examples_show_what_they_say(broker: BrokerProcess, kind: Any) -> None:
    async def run() -> None:
        admin = kind(broker.http_url)
        names = {kind.__name__: lambda url: kind(broker.http_url), "admin": admin}
        for example in examples(kind):
            assert await run_example(example, names) == example.want, example.source
        closed = admin.close()
        if inspect.isawaitable(closed):
            await closed

    assert len(examples(kind)) > 20
    asyncio.run(run())


def test_both_clients_have_the_same_methods_and_describe_each() -> None:
    assert methods(AdminClient).keys() == methods(AsyncAdminClient).keys()
    for kind in KINDS:
        for name, method in methods(kind).items():
            assert method.__doc__ or name == "close", name


def test_errors_say_what_a_caller_can_do(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as admin:
        with pytest.raises(NotFoundError, match="does not exist"):
            admin.topic_stats("orders")
        admin.create_topic("orders")
        with pytest.raises(ConflictError, match="exists"):
            admin.create_topic("orders")
        with pytest.raises(InvalidNameError):
            admin.create_namespace("orders")
    with pytest.raises(ConnectError, match="anabranch serve"):
        AdminClient("http://127.0.0.1:1").brokers()


def test_schemas_are_added_compared_found_and_deleted(broker: BrokerProcess) -> None:
    first = PostedSchema(type="AVRO", schema='{"type":"record","name":"Order","fields":[]}')
    other = PostedSchema(type="STRING")
    with AdminClient(broker.http_url) as admin:
        admin.create_topic("orders")
        assert admin.find_schema("orders", first).version == -1
        assert admin.add_schema("orders", first).version == admin.find_schema("orders", first).version == 0
        assert [found.type for found in admin.schemas("orders")] == ["AVRO"]
        assert admin.schema("orders", 0) == admin.schema("topic://public/default/orders")
        assert not admin.check_schema("orders", other).compatibility
        with pytest.raises(ConflictError):
            admin.add_schema("orders", other)
        with pytest.raises(InvalidConfigurationError, match="not an Avro schema"):
            admin.add_schema("orders", PostedSchema(type="AVRO", schema='"odd"'))
        with pytest.raises(InvalidConfigurationError, match="PostedSchema"):
            admin.add_schema("orders", "STRING")  # type: ignore[arg-type]
        assert admin.delete_schema("orders").version == 1
        assert admin.delete_schema("orders").version == -1
        with pytest.raises(NotFoundError):
            admin.schema("orders")


def test_calls_of_an_asynchronous_client_run_side_by_side(broker: BrokerProcess) -> None:
    async def run() -> None:
        async with AsyncAdminClient(broker.http_url) as admin:
            await asyncio.gather(*(admin.create_classic_topic(f"events-{n}") for n in range(20)))
            stats = await asyncio.gather(*(admin.classic_stats(f"events-{n}") for n in range(20)))
            assert all(isinstance(one, TopicStats) and one.topic_creation_time_stamp > 0 for one in stats)
            with pytest.raises(NotFoundError):
                await admin.classic_stats("events-20")

    asyncio.run(run())


def test_stored_messages_are_read_by_id_and_peeked(broker: BrokerProcess) -> None:
    name = "persistent://public/default/events"
    with AdminClient(broker.http_url) as admin, Client(broker.url) as client:
        admin.create_classic_topic(name)
        admin.create_subscription(name, "audit", start="earliest")
        with client.create_producer(name, batching=False) as producer:
            for number in range(3):
                producer.send(b"%d" % number, key="schlüssel", properties={"n": str(number)})
        peeked = admin.peek(name, "audit", 10)
        assert [one.payload for one in peeked] == [b"0", b"1", b"2"]
        last = admin.last_message_id(name)
        found = admin.message(name, last.ledger_id, last.entry_id)
        assert found == peeked[2]
        assert (found.key, found.properties, found.batch_size) == ("schlüssel", {"n": "2"}, None)
        assert admin.message_id_at(name, 0).entry_id == last.entry_id - 2
        assert admin.backlog_size(name, last.ledger_id, last.entry_id) == 0
        assert admin.backlog_size(name) == admin.internal_stats(name).total_size > 0
        with pytest.raises(NotFoundError):
            admin.peek(name, "nobody")


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_classic_topic_is_deleted_with_its_partitions(broker: BrokerProcess, partitions: int) -> None:
    with AdminClient(broker.http_url) as admin:
        admin.create_classic_topic("events", partitions)
        admin.delete_classic_topic("events")
        with pytest.raises(NotFoundError):
            admin.partitions("events")
        with pytest.raises(NotFoundError):
            admin.delete_classic_topic("events")


def test_the_snippets_of_the_guide_run(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs/admin.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", guide, re.S)
    for snippet in snippets:
        exec(compile(snippet.replace("http://127.0.0.1:8080", broker.http_url), "docs/admin.md", "exec"), {})
    assert capsys.readouterr().out == "3 0\n0\n"
