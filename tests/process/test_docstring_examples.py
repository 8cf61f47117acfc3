"""Every public name has a docstring with an example, and the example runs against a real broker."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import json
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import anabranch
from anabranch.testing.process import BrokerProcess


def example_of(name: str) -> str:
    """The code behind "Example:", in the same line or below, or behind the marks of doctest."""
    text = inspect.getdoc(getattr(anabranch, name)) or ""
    if ">>> " in text:
        return "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    inline = re.search(r"Example: `(.+)`", text)
    if inline is not None:
        return inline[1]
    _, found, below = text.partition("Example:\n")
    return textwrap.dedent(below) if found else ""


def test_every_public_name_has_an_example() -> None:
    assert [name for name in anabranch.__all__ if not example_of(name).strip()] == []


def test_every_example_runs(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker().start()
    failures: dict[str, BaseException] = {}
    for name in anabranch.__all__:
        code = example_of(name)
        code = code.replace("pulsar://127.0.0.1:6650", broker.url).replace(
            "http://127.0.0.1:8080", broker.http_url
        )
        # Examples share a broker, so each has topics of its own.
        code = code.replace('"orders"', f'"orders-{name}"')
        try:
            run(code, name)
        except Exception as error:
            failures[name] = error
    assert failures == {}


def run(code: str, name: str) -> None:
    names: dict[str, Any] = {each: getattr(anabranch, each) for each in anabranch.__all__}
    names |= {"json": json, "random": random}
    made = compile(code, f"<example of {name}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(made, names)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)
