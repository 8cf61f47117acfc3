"""Checks and encodes messages before they get their sequence ids.

Bad arguments raise here, in the caller's own call and thread. The module knows no segment or batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, Generic, TypeVar, cast

from anabranch.arguments import refused
from anabranch.client.decide.producing.outgoing import Extras
from anabranch.client.options import Seconds, seconds, text_pairs, wall_ms, without_utf8
from anabranch.client.produce.producer_schema import ProducerSchema
from anabranch.client.schema import BYTES, Codec, checked_codec
from anabranch.clock import Clock
from anabranch.errors import InvalidConfigurationError
from anabranch.speedups import largest_plain

T = TypeVar("T")

Prepared = tuple[bytes, str | bytes | None, Extras | None, int | None]
"""Encoded value, key, rarely used parts, and the sequence id if the caller chose one."""

KEY_TYPES = frozenset((str, bytes, type(None)))

Keys = Sequence[str | bytes | None]
PreparedMany = tuple[Sequence[bytes], Keys | None, Sequence[Extras] | None]
"""Encoded values, keys and rarely used parts of many messages."""

_BYTES_ONLY = frozenset((bytes,))


class Preparing(Generic[T]):
    """Prepares the messages of one producer."""

    def __init__(self, schema: Codec[T], clock: Clock) -> None:
        self.encode = checked_codec(schema).encode
        self.schema = ProducerSchema(schema)
        self.plain = bytes if cast(Any, schema) is BYTES else None
        """The type of values that need no encoding; None if all values need it."""
        self._encode_key = getattr(schema, "encode_key", None)
        self.takes_keys = self._encode_key is not None
        """Whether the keys of messages are part of their values."""
        self._clock = clock

    def one(
        self,
        value: T | None,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time: datetime | None,
        sequence_id: int | None,
        deliver_after: Seconds | None,
        deliver_at: datetime | None,
    ) -> Prepared:
        """Check and encode a message."""
        _check_key(key)
        if self._encode_key is not None and value is not None:
            key = self._key_of(value, key)
        if (
            properties is None
            and event_time is None
            and deliver_after is None
            and deliver_at is None
            and value is not None
            and sequence_id is None
        ):
            return self.encode(value), key, None, None
        if sequence_id is not None and not (type(sequence_id) is int and 0 <= sequence_id < 2**63):
            raise InvalidConfigurationError(f"sequence_id must be 0 or more, not {sequence_id!r}")
        if deliver_after is not None and deliver_at is not None:
            raise InvalidConfigurationError("give deliver_after or deliver_at, not both")
        deliver_at_ms = 0 if deliver_at is None else wall_ms("deliver_at", deliver_at)
        if deliver_after is not None:
            deliver_at_ms = self._time_after(deliver_after)
        event_time_ms = 0 if event_time is None else wall_ms("event_time", event_time)
        pairs = text_pairs("properties", properties) or None
        data = b"" if value is None else self.encode(value)
        if pairs is None and not event_time_ms and not deliver_at_ms and value is not None:
            return data, key, None, sequence_id
        return data, key, Extras(pairs, event_time_ms, value is None, deliver_at_ms), sequence_id

    def many(self, values: Sequence[T], keys: Keys | None) -> PreparedMany:
        """Check and encode many messages."""
        if self.plain is not None and _are_plain(values, keys):
            return cast(Sequence[bytes], values), keys, None
        _check_lists(values, keys)
        if self._encode_key is not None:
            keys = [
                self._key_of(value, key) for value, key in zip(values, keys or repeat(None), strict=False)
            ]
        if keys is not None:
            if len(keys) != len(values):
                raise InvalidConfigurationError(f"{len(values)} values need as many keys, not {len(keys)}")
            if not KEY_TYPES.issuperset(map(type, keys)) or not _are_ascii(keys):
                for key in keys:
                    _check_key(key)
        if self.plain is not None and _BYTES_ONLY.issuperset(map(type, values)):
            return cast(Sequence[bytes], values), keys, None
        return [self.encode(value) for value in values], keys, None

    def _time_after(self, delay: Seconds) -> int:
        found = self._clock.wall_ms() + round(seconds("deliver_after", delay, zero=True) * 1000)
        if found >= 2**63:
            raise InvalidConfigurationError(f"deliver_after must be a shorter time, not {delay}")
        return found

    def _key_of(self, value: T, key: str | bytes | None) -> bytes:
        if key is not None:
            raise InvalidConfigurationError("the schema takes the key from the value; give no other key")
        assert self._encode_key is not None
        return cast(bytes, self._encode_key(value))


def largest_size(values: Sequence[bytes]) -> int:
    """Return the size of the largest value; 0 without values."""
    found = largest_plain(values, None) if largest_plain is not None and type(values) is list else None
    return max(map(len, values), default=0) if found is None else found


def _are_plain(values: Sequence[Any], keys: Keys | None) -> bool:
    """Return whether all values are bytes and no key needs a closer look, as compiled code sees it."""
    if largest_plain is None or type(values) is not list or not (keys is None or type(keys) is list):
        return False
    return largest_plain(values, keys) is not None


def _check_lists(values: object, keys: object) -> None:
    for name, given in (("values", values), ("keys", [] if keys is None else keys)):
        if not hasattr(given, "__len__") or isinstance(given, (str, bytes)):
            raise refused(name, "a list", given)


def _check_key(key: object) -> None:
    if key is not None and not isinstance(key, (str, bytes)):
        raise TypeError(f"a key must be text or bytes, not {type(key).__name__}")
    if isinstance(key, str) and not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise without_utf8("a key", error) from None


def _are_ascii(keys: Keys) -> bool:
    """Return whether all keys are plain text, which needs no look at each of them."""
    try:
        return "".join(cast(Sequence[str], keys)).isascii()
    except TypeError:
        return False
