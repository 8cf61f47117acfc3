"""Every public name has a docstring with an example, and the example runs against a real broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import random
from collections.abc import Callable
from typing import Any

from anabranch.testing.local_broker import LocalBroker
from simulation.harness.process import BrokerProcess
from tools.snippets import FIXTURE, PUBLIC, documented, example_of, public


def test_every_public_name_has_an_example() -> None:
    assert [name for name in PUBLIC if not example_of(name).strip()] == []


def test_every_name_that_documents_import_is_public() -> None:
    found = {(module, name) for module, name in documented() if not module.startswith("anabranch.spark")}
    assert ("anabranch.otel", "Telemetry") in found
    assert sorted(name for _, name in found if name not in PUBLIC) == []


def test_every_example_runs(make_broker: Callable[..., BrokerProcess], anabranch_broker: LocalBroker) -> None:
    broker = make_broker().start()
    failures: dict[str, BaseException] = {}
    for name in PUBLIC:
        code = example_of(name)
        code = code.replace("pulsar://127.0.0.1:6650", broker.url).replace(
            "http://127.0.0.1:8080", broker.http_url
        )
        # Examples share a broker, so each has topics of its own.
        code = code.replace('"orders"', f'"orders-{name}"')
        try:
            run(code, name, anabranch_broker)
        except Exception as error:
            failures[name] = error
    assert failures == {}


def run(code: str, name: str, fixture: LocalBroker) -> None:
    names: dict[str, Any] = {each: public(each) for each in PUBLIC}
    names |= {"json": json, "random": random, FIXTURE: fixture}
    made = compile(code, f"<example of {name}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(made, names)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)
