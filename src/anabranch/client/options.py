"""Options of callers: small frozen values, checked when they are made and before any network call."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Final, Literal, TypedDict, get_args

from anabranch.arguments import check_flag, check_number, check_optional, number_of, refused, whole
from anabranch.client.encryption import Encrypt
from anabranch.client.interceptors import Interceptor
from anabranch.clock import Clock
from anabranch.credentials.authentication import Authentication
from anabranch.errors import InvalidConfigurationError, InvalidNameError, InvalidServiceUrlError
from anabranch.model.limits import check_properties
from anabranch.model.names import TopicName, validate_client_name, validate_subscription
from anabranch.transport.tls import TLS_SCHEME
from anabranch.transport.tls_arguments import TlsArguments

Seconds = float | timedelta
"""A duration as callers may write it."""

InitialPosition = Literal["earliest", "latest"]
AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
DeadLetterPolicy = Literal["skip", "park", "block"]
QueueOrder = Literal["key", "none"]
BadEntries = Literal["skip", "fail", "dead_letter"]
log = logging.getLogger("anabranch.client")

DEAD_LETTER_ENDING: Final = "-DLQ"
"""Behind the name of a topic: the topic of its dead letters, unless the application names another."""


def retry_ending(subscription: str) -> str:
    """As `DEAD_LETTER_ENDING`, for the topic of the messages that a subscription tries again."""
    return f"-{subscription}-RETRY"


class ClientArguments(TlsArguments, total=False):
    """More arguments of a client; those of TLS need a `pulsar+ssl://` URL."""

    authentication: Authentication | None
    """Proves the client's role, such as an AuthenticationToken; the client asks it for each connection and
    closes it. None connects without credentials."""
    interceptors: Sequence[Interceptor]
    """See the messages of all producers and consumers of the client."""
    clock: Clock | None
    """For simulation, as `rng`."""
    rng: Random | None


class ProducerArguments(TypedDict, total=False):
    """More arguments of a producer."""

    chunking: bool
    """Whether a message may have up to 128 MiB: it is stored in several entries if need be."""
    interceptors: Sequence[Interceptor]
    """See Interceptor; those of the client come first."""
    encryption: Encrypt | None
    """With keys, only the holders of their private parts can read the messages."""


CompressionName = Literal["lz4", "zlib", "zstd", "snappy"]

PLAIN_PORT, TLS_PORT = 6650, 6651
_NOT_IN_HOST: Final = re.compile(r"[\s/?#\[\]]")
MEMORY_LIMIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of a batch, which becomes one entry; the first limit reached closes all batches of a segment.

    A segment has one open batch for each of its buckets. They hold four full batches at most, so with more
    than four buckets each batch gets a smaller share of the limits.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders", batching=Batching(max_delay=0.01, max_messages=100))
    """

    max_delay: float = 0.001
    max_messages: int = 1000
    max_bytes: int = 128 * 2**10

    def __post_init__(self) -> None:
        check_number("max_delay", self.max_delay, least=0)
        positive("max_messages", self.max_messages)
        positive("max_bytes", self.max_bytes)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The fate of messages that were redelivered `max_redeliveries` times and failed again.

    With the policy "skip" such a message goes to the dead letter topic and its key continues. With "park" it
    stays in the subscription together with all later messages of its key, until an operator releases them.
    With "block" it is tried for ever, and its key waits. The last two need a consumer that keeps the order of
    keys.

    `topic` defaults to the source topic with `-DLQ` behind its name. `initial_subscription` is made there
    first, so that no message is lost before a consumer reads the topic.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.subscribe_queue("orders", "careful", dead_letter=DeadLetter(3, topic="orders-refused"))
    """

    max_redeliveries: int
    topic: str | None = None
    initial_subscription: str | None = None
    policy: DeadLetterPolicy = "skip"
    encryption: Encrypt | None = None
    """Encrypts the dead letters; a consumer that decrypts needs it."""

    def __post_init__(self) -> None:
        one_of("policy", self.policy, DeadLetterPolicy)
        whole("max_redeliveries", self.max_redeliveries)
        check_optional("encryption of a DeadLetter", self.encryption, Encrypt, "an Encrypt")
        if self.topic is not None:
            parse_topic(self.topic)
        check_optional("initial_subscription", self.initial_subscription, str, "text")
        if self.initial_subscription is not None:
            validate_subscription(self.initial_subscription)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of one producer, as `create_producer` describes them."""

    name: str | None = None
    access_mode: AccessMode = "shared"
    send_timeout_s: float = 30.0
    """0 lets messages wait for ever."""
    block_if_full: bool = True
    compression: CompressionName | None = None
    batching: Batching | bool = True
    initial_sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    chunking: bool = False
    """Whether a message that is too large for an entry is stored in several."""
    initial_subscription: str | None = None
    """A subscription that the broker makes before the first message."""
    encryption: Encrypt | None = None
    interceptors: tuple[Interceptor, ...] = ()

    def __post_init__(self) -> None:
        one_of("access_mode", self.access_mode, AccessMode)
        if self.compression is not None:
            one_of("compression", self.compression, CompressionName)
        check_optional("encryption of a producer", self.encryption, Encrypt, "an Encrypt")
        if not isinstance(self.batching, (Batching, bool)):
            raise InvalidConfigurationError("batching must be a Batching, True or False")
        check_flag("block_if_full", self.block_if_full)
        check_flag("chunking", self.chunking)
        check_name("producer", self.name)
        first = self.initial_sequence_id
        if first is not None and not (type(first) is int and -1 <= first < 2**63):
            raise InvalidConfigurationError(f"initial_sequence_id must be -1 or more, not {first!r}")

    @property
    def limits(self) -> Batching:
        """The limits of batches; without batching each message is an entry."""
        if isinstance(self.batching, Batching):
            # A message in chunks travels alone, so no batch may grow to the size of an entry.
            bytes_max = min(self.batching.max_bytes, 2**20) if self.chunking else self.batching.max_bytes
            return replace(self.batching, max_bytes=bytes_max)
        return Batching() if self.batching else Batching(max_delay=0.0, max_messages=1)


def seconds(name: str, value: Seconds, *, zero: bool = False) -> float:
    """A duration as a float; raises InvalidConfigurationError for any other value.

    So do negative durations, and zero unless allowed.
    """
    number = number_of(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise InvalidConfigurationError(f"{name} must be a positive number of seconds, not {value!r}")
    return number


def optional_seconds(name: str, value: Seconds | None) -> float | None:
    """As `seconds`; None means no limit, and zero means not to wait at all."""
    return None if value is None else seconds(name, value, zero=True)


def positive(name: str, value: int) -> int:
    """A count or size of at least one."""
    return whole(name, value, least=1)


def one_of(name: str, value: object, allowed: object) -> None:
    """Check that a word is one of the Literal `allowed`."""
    words = get_args(allowed)
    if value not in words:
        raise refused(name, f"one of {', '.join(words)}", value)


def wall_ms(name: str, moment: datetime) -> int:
    """An instant in milliseconds since 1970; it must say its time zone."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidConfigurationError(f"{name} must be a datetime with a time zone, not {moment!r}")
    found = round(moment.timestamp() * 1000)
    if found < 0:
        raise InvalidConfigurationError(f"{name} must not be before 1970, not {moment}")
    return found


def text_pairs(name: str, pairs: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the properties; names and values must be text."""
    check_optional(name, pairs, Mapping, "a mapping of text to text")
    found = dict(pairs or {})
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise InvalidConfigurationError(f"{name} must map text to text")
    try:
        "".join((*found, *found.values())).encode()
    except UnicodeEncodeError as error:
        raise without_utf8(name, error) from None
    return found


def without_utf8(name: str, error: UnicodeEncodeError) -> InvalidConfigurationError:
    """The error of text that cannot be sent, such as half of a surrogate pair."""
    return InvalidConfigurationError(f"{name} must be text that has a form in UTF-8: {error}")


def kept_pairs(name: str, pairs: Mapping[str, str] | None) -> dict[str, str]:
    """As `text_pairs`, for properties that the broker keeps; raises LimitExceededError."""
    found = text_pairs(name, pairs)
    check_properties(name, found)
    return found


def check_name(kind: Literal["producer", "consumer"], name: str | None) -> None:
    """Check the name of a caller; None lets the client choose one."""
    if name == "":
        raise InvalidConfigurationError("name must not be empty; leave it out to get a generated one")
    if name is not None:
        validate_client_name(kind, name)


def parse_topic(text: str) -> TopicName:
    """The topic of a name that a caller gave; a bare name means topic://public/default/<name>."""
    name = TopicName.parse(text, default_domain="topic")
    if name.is_segment:
        raise InvalidNameError(f"{text!r} is a segment; open its topic {name.topic} instead")
    if name.domain == "non-persistent":
        raise InvalidNameError(
            f"{text!r}: non-persistent topics are not supported; use topic:// or persistent://"
        )
    return name


def parse_service_url(url: str) -> tuple[tuple[str, int], ...]:
    """Hosts and ports of `pulsar[+ssl]://host[:port][,host[:port]...]`; raises InvalidServiceUrlError."""
    given = url.strip() if isinstance(url, str) else ""
    scheme, separator, rest = given.partition("://")
    if not separator or scheme not in ("pulsar", TLS_SCHEME):
        if scheme in ("http", "https"):
            hint = "give the broker's binary port instead of the HTTP one, such as pulsar://127.0.0.1:6650"
        else:
            hint = "write pulsar://host:port, or pulsar+ssl://host:port for TLS"
        raise InvalidServiceUrlError(f"{url!r} cannot be used as a service URL: {hint}")
    return tuple(parse_host(part, url) for part in rest.rstrip("/").split(","))


def is_tls_url(url: str) -> bool:
    return url.strip().startswith(f"{TLS_SCHEME}://")


def parse_host(text: str, url: str) -> tuple[str, int]:
    """`host`, `host:port`, `[v6]` or `[v6]:port`."""
    if "@" in text:
        # The URL is not shown, because it may hold a password.
        raise InvalidServiceUrlError("a service URL has no user and password; pass authentication=...")
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(TLS_PORT if is_tls_url(url) else PLAIN_PORT)
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    usable = bool(host) and not _NOT_IN_HOST.search(host) and (bracketed or ":" not in host)
    if not usable or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InvalidServiceUrlError(f"{url!r} cannot be used as a service URL: {text!r} is not host:port")
    return host, int(port)
