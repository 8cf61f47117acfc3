"""Checks and encodes messages before they get their sequence ids.

Bad arguments raise here, in the caller's own call and thread. The module knows no segment or batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from anabranch.client.decide.batcher import Extras
from anabranch.client.options import Seconds, seconds, text_pairs, wall_ms
from anabranch.client.produce.producer_schema import ProducerSchema
from anabranch.client.schema import BYTES, Codec
from anabranch.clock import Clock
from anabranch.errors import InvalidConfigurationError

T = TypeVar("T")

Prepared = tuple[bytes, str | bytes | None, Extras | None, int | None]
"""Encoded value, key, rarely used parts, and the sequence id if the caller chose one."""

_KEY_TYPES = frozenset((str, bytes, type(None)))
_BYTES_ONLY = frozenset((bytes,))


class Preparing(Generic[T]):
    """Prepares the messages of one producer."""

    def __init__(self, schema: Codec[T], clock: Clock) -> None:
        self.encode = schema.encode
        self.schema = ProducerSchema(schema)
        self.plain = bytes if cast(Any, schema) is BYTES else None
        """The type of values that need no encoding; None if all values need it."""
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
    ) -> tuple[bytes, Extras | None]:
        """Check a message; return its bytes and its rarely used parts."""
        _check_key(key)
        if (
            properties is None
            and event_time is None
            and deliver_after is None
            and deliver_at is None
            and value is not None
            and sequence_id is None
        ):
            return self.encode(value), None
        if sequence_id is not None and sequence_id < 0:
            raise InvalidConfigurationError("sequence_id must be 0 or more")
        if deliver_after is not None and deliver_at is not None:
            raise InvalidConfigurationError("give deliver_after or deliver_at, not both")
        deliver_at_ms = 0
        if deliver_after is not None:
            delay_s = seconds("deliver_after", deliver_after, zero=True)
            deliver_at_ms = self._clock.wall_ms() + round(delay_s * 1000)
        elif deliver_at is not None:
            deliver_at_ms = wall_ms("deliver_at", deliver_at)
        event_time_ms = 0 if event_time is None else wall_ms("event_time", event_time)
        pairs = text_pairs("properties", properties) or None
        data = b"" if value is None else self.encode(value)
        if pairs is None and not event_time_ms and not deliver_at_ms and value is not None:
            return data, None
        return data, Extras(pairs, event_time_ms, value is None, deliver_at_ms)

    def many(self, values: Sequence[T], keys: Sequence[str | bytes | None] | None) -> Sequence[bytes]:
        """Check many messages; return their bytes."""
        if keys is not None:
            if len(keys) != len(values):
                raise InvalidConfigurationError(f"{len(values)} values need as many keys, not {len(keys)}")
            if not _KEY_TYPES.issuperset(map(type, keys)):
                for key in keys:
                    _check_key(key)
        if self.plain is not None and _BYTES_ONLY.issuperset(map(type, values)):
            return cast(Sequence[bytes], values)
        return [self.encode(value) for value in values]


def _check_key(key: object) -> None:
    if key is not None and not isinstance(key, (str, bytes)):
        raise TypeError(f"a key must be text or bytes, not {type(key).__name__}")
