"""`anabranch produce`: sends values or lines with the blocking client."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

import anabranch
from anabranch.cli.options import SERVICE, AsJson, ServiceOptions, Topic
from anabranch.cli.role import role_of
from anabranch.cli.signals import ended_by_signals
from anabranch.client.options import parse_topic
from anabranch.errors import InvalidConfigurationError

LEAVE_TIMEOUT_S = 10.0
"""How long an interrupted command may take to complete its messages."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProduceWords:
    """The messages to send."""

    key: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="key of every message; {n} stands for its number from 0"),
    ] = None
    value: Annotated[
        str,
        Parameter(
            metavar="TEXT",
            allow_leading_hyphen=True,
            help="value of each message; {n} as in --key; - reads lines (default)",
        ),
    ] = "-"
    tombstone: Annotated[bool, Parameter(help="send messages without a value, which delete their key")] = (
        False
    )
    count: Annotated[
        int | None,
        Parameter(metavar="N", help="how often to send the value (1), or how many lines to read"),
    ] = None
    encrypt: Annotated[
        str | None,
        Parameter(metavar="NAME=FILE", help="encrypt for this key; the file has the public key, in PEM form"),
    ] = None
    as_json: AsJson = False

    @property
    def encryption(self) -> anabranch.Encrypt | None:
        if self.encrypt is None:
            return None
        name, separator, file = self.encrypt.partition("=")
        if not (name and separator and file):
            raise InvalidConfigurationError("--encrypt needs the name of a key and its file: NAME=FILE")
        return anabranch.Encrypt(name, anabranch.PemFiles(file))


PRODUCE_WORDS: Final = ProduceWords()


def produce(
    topic: Topic,
    /,
    *,
    how: ProduceWords = PRODUCE_WORDS,
    at: ServiceOptions = SERVICE,
) -> int:
    """Send messages and wait until all of them are stored.

    Without --value, each line of standard input is a message.
    """
    if how.count is not None and how.count < 1:
        raise InvalidConfigurationError("--count must be 1 or more")
    if how.tombstone and how.value != "-":
        raise InvalidConfigurationError("a tombstone has no value; leave --value out")
    began = time.monotonic()
    sent = 0
    name = parse_topic(topic)
    values = itertools.repeat(None, how.count or 1) if how.tombstone else _values(how.value, how.count)
    with ended_by_signals(), role_of(at, os.environ).connect() as client:
        producer: anabranch.Producer[bytes | None] = client.create_producer(topic, encryption=how.encryption)
        limit_s: float | None = LEAVE_TIMEOUT_S
        try:
            for one in values:
                producer.enqueue(one, key=None if how.key is None else how.key.replace("{n}", str(sent)))
                sent += 1
            limit_s = None
        finally:
            # An interrupted command completes the messages that it has taken.
            producer.flush(timeout=limit_s)
            producer.close(timeout=LEAVE_TIMEOUT_S)
            _report(str(name), sent, time.monotonic() - began, as_json=how.as_json)
    return 0


def _values(value: str, count: int | None) -> Iterator[bytes]:
    if value == "-":
        lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        yield from itertools.islice(lines, count)
    else:
        for number in range(count or 1):
            yield value.replace("{n}", str(number)).encode()


def _report(topic: str, sent: int, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"topic": topic, "messages": sent, "seconds": round(seconds, 6)}))
    else:
        print(f"{sent} message{'' if sent == 1 else 's'} stored in {topic}", file=sys.stderr)
