"""Every route, found by reflection, with bodies, paths and queries that no honest client sends."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from anabranch.admin.routes.table import ENDPOINTS
from tests.harness.admin import CLASSIC, ORDERS, Admin

BODIES = {
    "not UTF-8": b"\xff\xfe",
    "not UTF-8 in a text": b'{"a": "\xff"}',
    "half": b'{"a": ',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "a huge number": b"9" * 5000,
    "a huge number in an object": b'{"numSegments": ' + b"9" * 400 + b"}",
    "a huge exponent": b'{"a": 1e999999}',
    "not a number": b'{"a": NaN}',
    "infinite": b"[Infinity, -Infinity]",
    "duplicate keys": b'{"a": 1, "a": {"b": [1]}}',
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a zero byte": b'{"a": "\\u0000", "\\u0000": "a"}',
    "null": b"null",
    "a number": b"-1",
    "a text": b'"text"',
    "a list": b'[null, 1, "a", {}]',
    "an object of all types": b'{"a": null, "b": [], "c": {}, "d": 1.5, "e": true, "f": -1}',
    "too large": b'"' + b"x" * 2**21 + b'"',
}
MALFORMED = [
    "not UTF-8",
    "not UTF-8 in a text",
    "half",
    "deep lists",
    "deep objects",
    "not a number",
    "infinite",
    "too large",
]
PARTS = [
    "%00",
    "a%00b",
    "%2F",
    "..%2f..%2f..%2fetc",
    "%2e%2e",
    "%ff%fe",
    "%ED%A0%80",
    "%",
    "%zz",
    "-1",
    "1" * 5000,
    "0x" + "f" * 4000,
    "1e9",
    "NaN",
    "%20",
    "%F0%9F%90%8D",
    "a" * 10_000,
]
QUERIES = [
    "a=" + "x" * 10_000,
    "&".join(f"numInitialSegments={n}" for n in range(2000)),
    "numInitialSegments=%ff&force=%ff&timestamp=%ff&properties=%ff&subscription=%ff",
    "force=%00&timestamp=%00&epoch=%00&splits=%00&boundaries=%00",
    "timestamp=" + "9" * 5000,
    "timestamp=-1&epoch=-1&count=-1&authoritative=maybe&numInitialSegments=-1",
    "timestamp=NaN&epoch=1e400&numInitialSegments=Infinity&parts=0&at=,,,,",
    "&&&===&%&%zz=%zz;",
]

USUAL = {
    "tenant": "public",
    "namespace": "default",
    "subscription": "s",
    "segment": "0",
    "segments": "0/1",
    "descriptor": "0000-ffff-0",
    "policy": "retention",
    "bundle": "0x00000000_0xffffffff",
    "cluster": "standalone",
    "domain": "persistent",
    "count": "1",
    "timestamp": "1",
    "seconds": "1",
}

CALLS = [pytest.param(one.method, one.path, id=f"{one.method} {one.path}") for one in ENDPOINTS]


def parts_of(path: str) -> list[str]:
    return [part.partition(":")[0] for part in re.findall(r"{([^}]+)}", path)]


def filled(path: str, **parts: str) -> str:
    """The path with usual values for the parts that are not given."""
    usual = {**USUAL, "topic": "classic" if "persistent" in path else "orders", **parts}
    return re.sub(r"{([^}:]+)(:path)?}", lambda found: usual.get(found[1], "x"), path)


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR):
        yield
    assert caplog.records == []


def make_topics(admin: Admin) -> None:
    """Make the topics again that a call before may have deleted; a topic that exists is left alone."""
    for path in (ORDERS, CLASSIC):
        admin("PUT", path)
        admin("PUT", f"{path}/subscriptions/s" if path is ORDERS else f"{path}/subscription/s")


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_no_body_breaks_a_call(admin: Admin, method: str, path: str) -> None:
    make_topics(admin)
    # Twice, because a first call may change what a second one finds.
    without = [admin(method, filled(path)).status for _ in range(2)]
    for name, body in BODIES.items():
        make_topics(admin)
        answer = admin(method, filled(path), body)
        assert answer.status < 500, (name, answer.body)
        if answer.status >= 400:
            assert json.loads(answer.body)["reason"], name
        if name in MALFORMED:
            # A call that takes no body ignores it, and a call of a missing thing is refused before.
            assert answer.status in (400, *without), (name, answer.body)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_no_path_and_no_query_breaks_a_call(admin: Admin, method: str, path: str) -> None:
    make_topics(admin)
    for name in parts_of(path):
        for part in PARTS:
            answer = admin(method, filled(path, **{name: part}))
            assert answer.status < 500, (name, part[:50], answer.body)
    for query in QUERIES:
        answer = admin(method, f"{filled(path)}?{query}")
        assert answer.status < 500, (query[:80], answer.body)
