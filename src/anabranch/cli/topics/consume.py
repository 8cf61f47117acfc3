"""`anabranch consume`: prints messages, without a trace at the broker or as a consumer of a subscription."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from cyclopts import Parameter

import anabranch
from anabranch.cli.options import SERVICE, ServiceOptions, Topic
from anabranch.cli.role import role_of
from anabranch.cli.signals import ended_by_signals
from anabranch.cli.topics.message_text import Output, shown
from anabranch.client.options import parse_topic
from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.protocol.entry.entries import EncryptedEntryError

LEAVE_TIMEOUT_S = 10.0
"""How long an interrupted command may take to leave its subscription."""
CHUNK_MAX = 1000


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConsumeWords:
    """The begin and the end of reading, and the form of the output."""

    subscription: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="read as a consumer of this subscription, which is kept, and acknowledge what is printed "
            "(only look: nothing is acknowledged and nothing is left behind)",
        ),
    ] = None
    count: Annotated[int | None, Parameter(metavar="N", help="end after this many messages")] = None
    timeout: Annotated[
        float | None, Parameter(metavar="S", help="end when no message arrives for this many seconds")
    ] = None
    start: Annotated[
        Literal["earliest", "latest"],
        Parameter(name="--from", help="where a look or a new subscription begins (latest)"),
    ] = "latest"
    kind: Annotated[
        Literal["stream", "queue"] | None,
        Parameter(
            name="--type",
            help="with --subscription: stream keeps the order of each key, queue shares all messages out "
            "(stream)",
        ),
    ] = None
    output: Annotated[
        Output | None,
        Parameter(
            name=("--output", "-o"),
            help="text: key, tab, value, with base64: before a value that is not text; json: one object a "
            "line; raw: the bytes of the values alone; hex, base64: the value in this form (text)",
        ),
    ] = None
    as_json: Annotated[bool, Parameter(name="--json", help="the same as --output json")] = False
    create: Annotated[bool, Parameter(help="create the topic if it does not exist")] = False
    decrypt: Annotated[
        Path | None, Parameter(metavar="FILE", help="the private key for encrypted messages, in PEM form")
    ] = None

    @property
    def decryption(self) -> anabranch.Decrypt | None:
        return None if self.decrypt is None else anabranch.Decrypt(anabranch.PemFiles(self.decrypt))


CONSUME_WORDS: Final = ConsumeWords()


def consume(
    topic: Topic,
    /,
    *,
    how: ConsumeWords = CONSUME_WORDS,
    at: ServiceOptions = SERVICE,
) -> int:
    """Print messages as they arrive, `key<TAB>value`.

    Without --subscription the command only looks: every run with `--from earliest` prints the same messages.
    A message without a value, a tombstone, is printed as (null). Ctrl-C or SIGTERM ends the command; other
    consumers of the subscription take over at once.
    """
    if how.as_json and how.output not in (None, "json"):
        raise InvalidConfigurationError(f"--json contradicts --output {how.output}")
    if how.kind is not None and how.subscription is None:
        raise InvalidConfigurationError(
            "--type is for consumers of a subscription; name it with --subscription"
        )
    if how.count is not None and how.count < 1:
        raise InvalidConfigurationError("--count must be 1 or more")
    form: Output = "json" if how.as_json else how.output or "text"
    with ended_by_signals(), role_of(at, os.environ).connect() as client:
        if not how.create:
            _check_exists(client, topic)
        source: PrintedSource
        if how.subscription is None:
            source = _Look(client, topic, how)
        else:
            source = _Member(client, topic, how.subscription, how)
        try:
            if not _print_all(source, form, how.count, how.timeout):
                _explain_silence(how)
        except EncryptedEntryError:
            raise EncryptedEntryError(
                "the message is encrypted; name its private key with --decrypt"
            ) from None
        finally:
            source.consumer.close(timeout=LEAVE_TIMEOUT_S)
    return 0


def _check_exists(client: anabranch.Client, topic: str) -> None:
    """Opening a consumer creates a topic; a mistyped name must not."""
    try:
        client.layout(topic)
    except TopicNotFoundError as error:
        if parse_topic(topic).partition is not None:
            raise
        raise TopicNotFoundError(f"{error}; create it with --create, or by producing to it") from None


class PrintedSource(Protocol):
    """The consumer behind the command."""

    consumer: Any

    def done(self, messages: list[anabranch.Message[bytes]]) -> None:
        """These messages, the last ones received, are printed."""


class _Look:
    def __init__(self, client: anabranch.Client, topic: str, how: ConsumeWords) -> None:
        begin = anabranch.Checkpoint.earliest() if how.start == "earliest" else anabranch.Checkpoint.latest()
        self.consumer: Any = client.create_checkpoint_consumer(topic, start=begin, encryption=how.decryption)

    def done(self, messages: list[anabranch.Message[bytes]]) -> None:
        """The broker keeps nothing for a look."""


class _Member:
    def __init__(self, client: anabranch.Client, topic: str, subscription: str, how: ConsumeWords) -> None:
        self._ordered = how.kind != "queue"
        subscribe: Any = client.subscribe_stream if self._ordered else client.subscribe_queue
        self.consumer: Any = subscribe(
            topic, subscription, initial_position=how.start, encryption=how.decryption
        )

    def done(self, messages: list[anabranch.Message[bytes]]) -> None:
        if self._ordered:
            self.consumer.acknowledge_cumulative(messages[-1])
        else:
            self.consumer.acknowledge(messages)


def _explain_silence(how: ConsumeWords) -> None:
    """Tell the operator, when no message came, how to see the messages that are stored already."""
    if how.subscription is not None:
        more = "; a subscription that exists goes on where it stopped: `anabranch subscription seek` moves it"
    else:
        more = "; --from earliest prints those that are stored already" if how.start == "latest" else ""
    print(f"anabranch: no message came{more}", file=sys.stderr)


def _print_all(source: PrintedSource, form: Output, count: int | None, timeout_s: float | None) -> int:
    """Print messages until the count or the timeout is reached; return their number."""
    taken = 0
    out = sys.stdout.buffer
    while count is None or taken < count:
        left = CHUNK_MAX if count is None else min(CHUNK_MAX, count - taken)
        messages = source.consumer.receive_many(left, timeout=timeout_s or 1.0)
        if messages:
            out.write(b"".join(shown(message, form) for message in messages))
            out.flush()
            taken += len(messages)
            source.done(messages)
        elif timeout_s is not None:
            break
    return taken
