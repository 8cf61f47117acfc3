"""Which schema may become the next version of a topic, and with which schema a consumer may read it.

The strategies are Pulsar's. Functions take the versions to compare with; `compares` says which ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

from anabranch.errors import IncompatibleSchemaError
from anabranch.schemas.avro import parse_avro
from anabranch.schemas.avro_resolution import unreadable
from anabranch.schemas.definitions import (
    AVRO_KINDS,
    KEY_VALUE,
    NATIVE,
    REST_NAMES,
    Definition,
    digest_of,
    halves,
)
from anabranch.schemas.protobuf import MessageType

Strategy = Literal[
    "ALWAYS_COMPATIBLE",
    "ALWAYS_INCOMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
STRATEGIES: Final = get_args(Strategy)
Compared = Literal["none", "newest", "all"]

_TRANSITIVE: Final = "_TRANSITIVE"


def compares(strategy: Strategy) -> Compared:
    """With which versions of the topic a new one is compared."""
    if strategy == "ALWAYS_COMPATIBLE":
        return "none"
    return "all" if strategy.endswith(_TRANSITIVE) else "newest"


def consumer_strategy(strategy: Strategy) -> Strategy:
    """Return the strategy for the schema of a consumer, which has to read what is stored."""
    if strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"):
        return "BACKWARD"
    return strategy


def check_compatible(strategy: Strategy, new: Definition, known: Iterable[Definition]) -> None:
    """Raise IncompatibleSchemaError, with the reason, unless the strategy allows `new` after `known`.

    A schema that is the same as a known one is compatible with it under every strategy.
    """
    if strategy == "ALWAYS_COMPATIBLE":
        return
    for old in known:
        if old.kind != new.kind:
            was, now = REST_NAMES.get(old.kind, old.kind), REST_NAMES.get(new.kind, new.kind)
            raise IncompatibleSchemaError(f"the topic has a schema of type {was}, not {now}")
        why = _why_not(strategy, new, old)
        if why is not None:
            raise IncompatibleSchemaError(f"the schema is not compatible under {strategy}: {why}")


def _why_not(strategy: Strategy, new: Definition, old: Definition) -> str | None:
    if new.data == old.data and new.kind != KEY_VALUE:
        return None
    if strategy == "ALWAYS_INCOMPATIBLE":
        return None if digest_of(new) == digest_of(old) else "it differs from the one of the topic"
    if new.kind in AVRO_KINDS:
        return _why_not_avro(strategy, new.data, old.data)
    if new.kind == NATIVE:
        names = [MessageType.registered(data).name for data in (new.data, old.data)]
        return None if names[0] == names[1] else f"its message is {names[0]}, not {names[1]}"
    if new.kind == KEY_VALUE:
        for half, was in zip(halves(new), halves(old), strict=True):
            if half.kind != was.kind:
                return f"a part is of type {REST_NAMES[half.kind]}, not {REST_NAMES[was.kind]}"
            if why := _why_not(strategy, half, was):
                return why
    return None


def _why_not_avro(strategy: Strategy, new_data: bytes, old_data: bytes) -> str | None:
    new, old = parse_avro(new_data), parse_avro(old_data)
    direction = strategy.removesuffix(_TRANSITIVE)
    if direction != "FORWARD" and (why := unreadable(new, old)):
        return f"it cannot read what the known schema wrote: {why}"
    if direction != "BACKWARD" and (why := unreadable(old, new)):
        return f"the known schema cannot read what it writes: {why}"
    return None
