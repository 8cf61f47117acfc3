"""`anabranch produce` and `anabranch consume`: the blocking client on a terminal."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anabranch
from anabranch.cli.role import role_of
from anabranch.client.options import parse_service_url, parse_topic
from anabranch.errors import ConnectError, InvalidConfigurationError

CONNECT_TIMEOUT_S = 5.0

LEAVE_TIMEOUT_S = 10.0
"""How long an interrupted command may take to complete its messages and to leave its subscription."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that the block can leave; the exit code is 143."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        # Python takes signals in the main thread only.
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def produce(arguments: argparse.Namespace) -> int:
    if arguments.count is not None and arguments.count < 1:
        raise InvalidConfigurationError("--count must be 1 or more")
    began = time.monotonic()
    sent = 0
    topic = parse_topic(arguments.topic)
    with ended_by_signals(), _open(arguments) as client:
        producer: anabranch.Producer[bytes] = client.create_producer(arguments.topic)
        limit_s: float | None = LEAVE_TIMEOUT_S
        try:
            for value in _values(arguments):
                key = arguments.key.replace("{n}", str(sent)) if arguments.key is not None else None
                producer.enqueue(value, key=key)
                sent += 1
            limit_s = None
        finally:
            # An interrupted command completes the messages that it has taken.
            producer.flush(timeout=limit_s)
            producer.close(timeout=LEAVE_TIMEOUT_S)
            _report(arguments, str(topic), sent, time.monotonic() - began)
    return 0


def _report(arguments: argparse.Namespace, topic: str, sent: int, seconds: float) -> None:
    if arguments.json:
        print(json.dumps({"topic": topic, "messages": sent, "seconds": round(seconds, 6)}))
    else:
        print(f"{sent} message{'' if sent == 1 else 's'} stored in {topic}", file=sys.stderr)


def _open(arguments: argparse.Namespace) -> anabranch.Client:
    """Return a client, or raise ConnectError at once if no broker answers; the client itself would wait."""
    role = role_of(arguments, os.environ)
    url = role.service_url
    refused: OSError | None = None
    for address in parse_service_url(url):
        try:
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()
            return role.open_client()
        except OSError as error:
            refused = error
    raise ConnectError(
        f"cannot reach a broker at {url}: {refused}; is `anabranch serve` running, with this --port?"
    )


def _values(arguments: argparse.Namespace) -> Iterator[bytes]:
    if arguments.value == "-":
        lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        yield from itertools.islice(lines, arguments.count)
    else:
        for number in range(arguments.count or 1):
            yield arguments.value.replace("{n}", str(number)).encode()


def consume(arguments: argparse.Namespace) -> int:
    """Print and acknowledge messages until the count, the timeout or a signal; then leave."""
    with ended_by_signals(), _open(arguments) as client:
        subscribe = client.subscribe_stream if arguments.kind == "stream" else client.subscribe_queue
        consumer: Any = subscribe(arguments.topic, arguments.subscription, initial_position=arguments.start)
        taken = 0
        try:
            while arguments.count is None or taken < arguments.count:
                left = 1000 if arguments.count is None else min(1000, arguments.count - taken)
                messages = consumer.receive_many(left, timeout=arguments.timeout or 1.0)
                if not messages:
                    if arguments.timeout is not None:
                        break
                    continue
                for message in messages:
                    print(_text(message, as_json=arguments.json))
                sys.stdout.flush()
                taken += len(messages)
                if arguments.kind == "stream":
                    consumer.acknowledge_cumulative(messages[-1])
                else:
                    consumer.acknowledge(messages)
        finally:
            consumer.close(timeout=LEAVE_TIMEOUT_S)
    return 0


def _text(message: Any, *, as_json: bool) -> str:
    value = bytes(message.value).decode(errors="replace")
    if not as_json:
        return value if message.key is None else f"{message.key}\t{value}"
    return json.dumps(
        {
            "id": str(message.id),
            "key": message.key,
            "value": value,
            "properties": dict(message.properties),
            "publishTime": message.publish_time.isoformat(),
            "redeliveryCount": message.redelivery_count,
        }
    )
