"""Avro schemas of Python types: dataclasses, msgspec structs, typed dicts and pydantic models.

A field is optional for readers if it has a default in Python. Defaults of factories other than empty
containers are left out, because they may differ from call to call.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections import abc
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin
from uuid import UUID

import msgspec

from anabranch.errors import InvalidConfigurationError

Form = Literal["Json", "Avro"]

_PLAIN: Final = {bool: "boolean", int: "long", float: "double", str: "string", bytes: "bytes"}
_LOGICAL: Final = {
    datetime: ("long", "timestamp-micros"),
    date: ("int", "date"),
    time: ("long", "time-micros"),
    UUID: ("string", "uuid"),
}
_ARRAYS: Final = (list, set, frozenset, tuple, abc.Sequence, abc.Collection)
_MAPS: Final = (dict, abc.Mapping)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EMPTY: Final[dict[Any, Any]] = {list: [], tuple: [], set: [], frozenset: [], dict: {}}
_NONE: Final = type(None)


class _Field(NamedTuple):
    name: str
    kind: Any
    default: Any
    """`dataclasses.MISSING` without a default that readers may use."""


def is_pydantic(kind: Any) -> bool:
    """Return whether a class is a model of pydantic, which is not imported for the answer."""
    return isinstance(kind, type) and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in kind.__mro__
    )


def avro_of(kind: Any, form: Form) -> Any:
    """Return the Avro schema of a type, for its JSON or its Avro form; raises InvalidConfigurationError."""
    if not isinstance(kind, abc.Hashable):
        raise InvalidConfigurationError(f"a schema needs a type, not {kind!r}")
    return _Walk(form).schema(kind, getattr(kind, "__name__", str(kind)))


class _Walk:
    """Walks the types inside one type and remembers the classes that it has named."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._named: dict[str, Any] = {}

    def schema(self, kind: Any, place: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self.schema(arguments[0], place)
        if (plain := self._plain(kind)) is not None:
            return plain
        if origin is Literal and all(isinstance(value, str) for value in arguments):
            return "string"
        if origin in (Union, types.UnionType):
            return self._union(arguments, place)
        if origin in _ARRAYS or kind in _ARRAYS:
            return {"type": "array", "items": self._item(origin, arguments, place)}
        if origin in _MAPS and arguments[0] is str:
            return {"type": "map", "values": self.schema(arguments[1], place)}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._enum(kind, place)
        return self._record(kind, place)

    def _plain(self, kind: Any) -> Any:
        """Return the schema of a type without parts; None for other types."""
        in_json = self._form == "Json"
        if in_json and kind in (bytes, Decimal, *_LOGICAL):
            return "string"
        if kind in _LOGICAL:
            stored, logical = _LOGICAL[kind]
            return {"type": stored, "logicalType": logical}
        return _PLAIN.get(kind) if isinstance(kind, type) else None

    def _item(self, origin: Any, arguments: tuple[Any, ...], place: str) -> Any:
        if len(arguments) == 1 or (origin is tuple and arguments[1:] == (Ellipsis,)):
            return self.schema(arguments[0], f"{place}[]")
        raise InvalidConfigurationError(f"{place}: name the one type of its items, such as list[str]")

    def _union(self, members: tuple[Any, ...], place: str) -> list[Any]:
        found = [self.schema(member, place) for member in members if member is not _NONE]
        if len(found) > 1 and any(isinstance(part, dict) for part in found):
            raise InvalidConfigurationError(
                f"{place}: a union may hold None and one type, or plain types; readers cannot tell more apart"
            )
        return ["null", *found] if _NONE in members else found

    def _enum(self, kind: type[enum.Enum], place: str) -> Any:
        values = [member.value for member in kind]
        if all(isinstance(value, int) for value in values):
            return "long"
        if not all(isinstance(value, str) for value in values):
            raise InvalidConfigurationError(f"{place}: the values of an enum are texts or whole numbers")
        if not all(_NAME.fullmatch(value) for value in values):
            return "string"
        if self._named.setdefault(kind.__name__, kind) is not kind:
            raise _same_name(kind)
        self._named[kind.__name__] = kind
        return {"type": "enum", "name": kind.__name__, "symbols": values}

    def _record(self, kind: Any, place: str) -> Any:
        fields = _fields(kind)
        if fields is None:
            raise InvalidConfigurationError(
                f"{place}: {kind!r} has no schema; use dataclasses, msgspec structs, typed dicts, pydantic "
                "models, numbers, texts, bytes, dates, enums, lists, dicts with text keys, and None"
            )
        name = kind.__name__
        if name in self._named:
            if self._named[name] is not kind:
                raise _same_name(kind)
            return name
        self._named[name] = kind
        return {"type": "record", "name": name, "fields": [self._field(one, place) for one in fields]}

    def _field(self, field: _Field, place: str) -> dict[str, Any]:
        schema = self.schema(field.kind, f"{place}.{field.name}")
        found: dict[str, Any] = {"name": field.name, "type": schema}
        default = field.default
        if isinstance(default, enum.Enum):
            default = default.value
        if default is dataclasses.MISSING or not isinstance(
            default, (_NONE, bool, int, float, str, list, dict)
        ):
            return found
        if isinstance(schema, list):
            # The default of a union is one of its first member.
            first = "null" if default is None else _PLAIN.get(type(default))
            if first not in schema:
                return found
            found["type"] = [first, *(part for part in schema if part != first)]
        elif schema == "double" and isinstance(default, int):
            default = float(default)
        return {**found, "default": default}


def _same_name(kind: type) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"two types of one schema are called {kind.__name__}; rename one of them"
    )


def _fields(kind: Any) -> list[_Field] | None:
    """Return the fields of a class; None if it has none."""
    if is_pydantic(kind):
        return [_pydantic_field(name, field) for name, field in kind.model_fields.items()]
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return [
            _Field(one.encode_name, hints[one.name], _default(one, msgspec.NODEFAULT))
            for one in msgspec.structs.fields(kind)
        ]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return [
            _Field(one.name, hints[one.name], _default(one, dataclasses.MISSING))
            for one in dataclasses.fields(kind)
        ]
    return _dict_fields(kind) if typing.is_typeddict(kind) else None


def _dict_fields(kind: Any) -> list[_Field]:
    if optional := sorted(kind.__optional_keys__):
        raise InvalidConfigurationError(
            f"{kind.__name__}: the keys {', '.join(optional)} may be missing; let them be None instead"
        )
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_Field(name, hint, dataclasses.MISSING) for name, hint in hints.items()]


def _pydantic_field(name: str, field: Any) -> _Field:
    default: Any = dataclasses.MISSING
    if not field.is_required():
        if field.default_factory is not None:
            default = _EMPTY.get(field.default_factory, dataclasses.MISSING)
        else:
            default = field.default
    return _Field(field.serialization_alias or field.alias or name, field.annotation, default)


def _default(field: Any, missing: Any) -> Any:
    if field.default is not missing:
        return field.default
    factory = field.default_factory
    return dataclasses.MISSING if factory is missing else _EMPTY.get(factory, dataclasses.MISSING)
