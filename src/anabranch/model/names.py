"""topic://, segment://, persistent:// and non-persistent:// names.

Parsing is strict: each accepted name has one canonical text. This module knows nothing of which topics exist.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast
from urllib.parse import quote_plus, unquote_plus

from anabranch.errors import InvalidNameError, LayoutError
from anabranch.model.limits import (
    ENTITY_BYTES_MAX,
    LOCAL_BYTES_MAX,
    NAME_BYTES_MAX,
    TOPIC_BYTES_MAX,
    bounded_name,
)
from anabranch.model.ranges import HashRange

Domain = Literal["persistent", "non-persistent", "topic", "segment"]
DOMAINS: tuple[Domain, ...] = ("persistent", "non-persistent", "topic", "segment")
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"

STORAGE_NAME_MAX = 200
"""Most bytes of a storage name; file systems allow 255, and file names add endings."""

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_SEGMENT_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_STORED_AS_IS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


@dataclass(frozen=True, slots=True, order=True)
class SegmentDescriptor:
    """The last part of a segment's name: its hash range and id."""

    range: HashRange
    id: int

    def __str__(self) -> str:
        return f"{self.range}-{self.id}"

    @staticmethod
    def parse(text: str) -> SegmentDescriptor:
        """Undo `str`; raises InvalidNameError."""
        range_text, _, id_text = text.rpartition("-")
        if _SEGMENT_ID.fullmatch(id_text):
            try:
                return SegmentDescriptor(HashRange.parse(range_text), int(id_text))
            except LayoutError:
                pass
        raise InvalidNameError(
            f"{text!r} does not describe a segment; write <first>-<last>-<id>: the ends of its hash range in "
            f"four lower-case hex digits each and a decimal id, like 0000-7fff-1"
        )


@dataclass(frozen=True, slots=True)
class TopicName:
    """A whole name; equal names are the same topic.

    Example: `assert TopicName.parse("topic://public/default/orders").namespace == "default"`
    """

    domain: Domain
    tenant: str
    namespace: str
    local: str
    segment: SegmentDescriptor | None = None

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise InvalidNameError(f"unknown scheme {self.domain!r}; use one of {', '.join(DOMAINS)}")
        validate_entity("tenant", self.tenant)
        validate_entity("namespace", self.namespace)
        _validate_local(self.domain, self.local)
        if (self.domain == "segment") != (self.segment is not None):
            raise InvalidNameError(
                "a segment:// name, and no other, ends with a descriptor like 0000-7fff-1; "
                "make one with segment_name()"
            )

    @staticmethod
    def parse(text: str, *, default_domain: Domain = "persistent") -> TopicName:
        """Read a name: with a scheme, or `tenant/namespace/name`, or a bare `name` of public/default."""
        domain, scheme, rest = bounded_name("topic", text, TOPIC_BYTES_MAX).partition("://")
        if not scheme:
            return _parse_short(text, default_domain)
        if domain not in DOMAINS:
            raise InvalidNameError(f"unknown scheme in {text!r}; use one of {', '.join(DOMAINS)}")
        parts = rest.split("/", 2)
        if len(parts) < 3:
            raise InvalidNameError(f"{text!r} is incomplete; write {domain}://tenant/namespace/name")
        # Interned, because a broker keeps many names but few tenants.
        domain, tenant, namespace, local = *map(sys.intern, (domain, *parts[:2])), parts[2]
        if domain != "segment":
            return TopicName(cast(Domain, domain), tenant, namespace, local)
        local, slash, descriptor = local.rpartition("/")
        if not slash:
            raise InvalidNameError(
                f"{text!r} is incomplete; write segment://tenant/namespace/name/0000-ffff-0"
            )
        return TopicName("segment", tenant, namespace, local, SegmentDescriptor.parse(descriptor))

    def __str__(self) -> str:
        whole = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"
        return whole if self.segment is None else f"{whole}/{self.segment}"

    @property
    def is_scalable(self) -> bool:
        """Whether this is the name of a scalable topic."""
        return self.domain == "topic"

    @property
    def is_live(self) -> bool:
        """Whether this is a `non-persistent://` topic, which stores no message."""
        return self.domain == "non-persistent"

    @property
    def is_segment(self) -> bool:
        return self.domain == "segment"

    @property
    def namespace_name(self) -> str:
        """Tenant and namespace as `tenant/namespace`."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def topic(self) -> TopicName:
        """The scalable topic with the same parts; for a segment the topic that it belongs to."""
        return self if self.domain == "topic" else TopicName("topic", self.tenant, self.namespace, self.local)

    def segment_name(self, hash_range: HashRange, id_: int) -> TopicName:
        """Return the name of a segment of this topic."""
        return TopicName(
            "segment", self.tenant, self.namespace, self.local, SegmentDescriptor(hash_range, id_)
        )

    @property
    def partition(self) -> int | None:
        """The partition number in the name; None for a whole topic."""
        stem, _, number = self.local.rpartition("-partition-")
        if not stem or self.is_segment or not _PARTITION.fullmatch(number):
            return None
        return int(number)

    def partition_name(self, index: int) -> TopicName:
        """Return the name of one partition of this topic."""
        if self.partition is not None or self.is_segment or index < 0:
            raise InvalidNameError(f"{self} has no partition {index}")
        return replace(self, local=f"{self.local}-partition-{index}")

    @property
    def partitioned_topic(self) -> TopicName:
        """The whole topic of a partition; any other name is returned as it is."""
        if self.partition is None:
            return self
        return replace(self, local=self.local.rpartition("-partition-")[0])

    @property
    def storage_name(self) -> str:
        """The name as one component of a file path; see `storage_name`."""
        parts = [self.domain, self.tenant, self.namespace, self.local]
        if self.segment is not None:
            parts.append(str(self.segment))
        return storage_name(parts)


class Place(NamedTuple):
    """A segment and the store that holds it; the owner of the store serves the segment."""

    name: TopicName
    store: int


def storage_name(parts: Sequence[str]) -> str:
    """Return the parts of a name as one component of a file path.

    Different names give different results, also on file systems that ignore case; the result is lower-case
    ASCII without dots. A long name is cut and ends with its digest.
    """
    whole = "~".join(map(_storage_part, parts))
    if len(whole) <= STORAGE_NAME_MAX:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return f"{whole[: STORAGE_NAME_MAX - len(digest) - 1]}+{digest}"


def encode_part(text: str) -> str:
    """Return any text as one element of a metadata path, as Java's URLEncoder writes it."""
    if not text:
        raise InvalidNameError("an empty text cannot be an element of a path")
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote_plus(text, safe="*").replace("~", "%7E")


def decode_part(text: str) -> str:
    """Undo `encode_part`."""
    return unquote_plus(text, errors="strict")


def validate_entity(kind: str, name: str) -> str:
    """Return the name of a tenant, namespace or cluster if it may be used; raises InvalidNameError."""
    bounded_name(kind, name, ENTITY_BYTES_MAX)
    if not _ENTITY.fullmatch(name) or name in (".", ".."):
        raise InvalidNameError(
            f"{name!r} cannot be a {kind} name; use letters, digits and the characters - = : . _"
        )
    return name


def validate_subscription(name: str) -> str:
    """Return the subscription name if it may be used; raises InvalidNameError."""
    bounded_name("subscription", name, NAME_BYTES_MAX)
    if not name or name.strip() != name or _CONTROL.search(name):
        raise InvalidNameError(
            f"{name!r} cannot be a subscription name; use printable text without blanks at its ends"
        )
    return name


def validate_client_name(kind: Literal["producer", "consumer"], name: str) -> str:
    """Return the name that a client gives to its producer or consumer; raises InvalidNameError."""
    bounded_name(kind, name, NAME_BYTES_MAX)
    if _CONTROL.search(name):
        raise InvalidNameError(f"{name!r} cannot be a {kind} name; use printable text")
    return name


def parse_namespace(text: str) -> tuple[str, str]:
    """Split `tenant/namespace` into tenant and namespace."""
    tenant, slash, namespace = text.partition("/") if isinstance(text, str) else ("", "", "")
    if not slash:
        raise InvalidNameError(f"{text!r} is not a namespace; write tenant/namespace")
    return validate_entity("tenant", tenant), validate_entity("namespace", namespace)


def _parse_short(text: str, domain: Domain) -> TopicName:
    parts = text.split("/")
    if domain == "segment" or len(parts) not in (1, 3):
        raise InvalidNameError(
            f"{text!r} is not a topic name; write name, tenant/namespace/name or {domain}://tenant/namespace/name"
        )
    if len(parts) == 1:
        return TopicName(domain, DEFAULT_TENANT, DEFAULT_NAMESPACE, text)
    tenant, namespace, local = parts
    return TopicName(domain, tenant, namespace, local)


def _validate_local(domain: Domain, local: str) -> None:
    stem, _, number = local.rpartition("-partition-")
    bounded_name("topic", stem if _PARTITION.fullmatch(number) else local, LOCAL_BYTES_MAX)
    if "/" in local and domain in ("persistent", "non-persistent"):
        raise InvalidNameError(
            f"{local!r} holds a slash: tenant/cluster/namespace/name is the old form and not supported; "
            f"write {domain}://tenant/namespace/name, or topic:// where names may hold slashes"
        )
    if local.strip() != local or _CONTROL.search(local):
        raise InvalidNameError(f"{local!r} holds control characters, or begins or ends with a blank")
    if any(element in ("", ".", "..") for element in local.split("/")):
        raise InvalidNameError(
            f"{local!r} has an element that is empty, a dot or two dots; name each element"
        )


def _storage_part(text: str) -> str:
    return "".join(chr(byte) if byte in _STORED_AS_IS else f"%{byte:02x}" for byte in text.encode())
