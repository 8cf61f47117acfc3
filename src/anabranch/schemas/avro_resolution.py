"""Whether a reader with one Avro schema can read what a writer wrote with another, as Avro's rules say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from anabranch.schemas.avro import ParsedAvro

_PROMOTED: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""Type of the reader -> other types of the writer whose values it takes."""


def unreadable(reader: ParsedAvro, writer: ParsedAvro) -> str | None:
    """Return why the reader cannot read all that the writer writes; None if it can."""
    return _Resolution(reader, writer).why(reader.root, writer.root, "value")


def reader_of(reader: ParsedAvro, writer: ParsedAvro) -> Any:
    """Return the reader's schema with the writer's record names as aliases, as fastavro compares names."""
    resolution = _Resolution(reader, writer)
    resolution.why(reader.root, writer.root, "value")
    names: dict[str, list[str]] = {}
    for own, other in sorted(resolution.met):
        names.setdefault(own, []).append(other)
    return _with_aliases(reader.root, names)


def _with_aliases(schema: Any, names: Mapping[str, list[str]]) -> Any:
    if isinstance(schema, list):
        return [_with_aliases(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_aliases(part, names) for key, part in schema.items()}
    if schema.get("type") in ("record", "error") and schema["name"] in names:
        found["aliases"] = [*schema.get("aliases", ()), *names[schema["name"]]]
    return found


class _Resolution:
    """Walks two schemas together; a pair of records that is met again inside itself is taken to fit."""

    def __init__(self, reader: ParsedAvro, writer: ParsedAvro) -> None:
        self._reader, self._writer = reader.named, writer.named
        self.met: frozenset[tuple[str, str]] = frozenset()
        """The names of the records of the reader and of the writer that were compared."""

    def why(self, reader: Any, writer: Any, place: str) -> str | None:
        reader, writer = _plain(reader, self._reader), _plain(writer, self._writer)
        if isinstance(writer, list):
            return next((why for one in writer if (why := self.why(reader, one, place))), None)
        if isinstance(reader, list):
            if self._some(reader, writer, place):
                return None
            return f"{place} may be of type {_kind(writer)}, which the reader's union has no type for"
        read, written = _kind(reader), _kind(writer)
        if read != written:
            return None if written in _PROMOTED.get(read, ()) else f"{place} is {written}, not {read}"
        match read:
            case "array":
                return self.why(reader["items"], writer["items"], f"{place}[]")
            case "map":
                return self.why(reader["values"], writer["values"], f"{place}{{}}")
            case "record" | "enum" | "fixed" | "error":
                return self._named(reader, writer, place)
        return None

    def _some(self, union: list[Any], writer: Any, place: str) -> bool:
        """Return whether a type of the reader's union fits, at first the one that has the writer's name."""
        for one in sorted(union, key=lambda one: not _has_name_of(_plain(one, self._reader), writer)):
            before = self.met
            if self.why(one, writer, place) is None:
                return True
            self.met = before
        return False

    def _named(self, reader: Any, writer: Any, place: str) -> str | None:
        if reader["type"] in ("record", "error"):
            # Avro for Java, which Pulsar uses, compares the fields of records and not their names.
            return self._record(reader, writer, place)
        if not _same_name(reader, writer):
            return f"{place} is {writer['name']}, not {reader['name']}"
        if reader["type"] == "enum":
            missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if missing and "default" not in reader:
                return f"{place} may be {missing[0]}, which the reader does not know"
            return None
        same = reader["size"] == writer["size"]
        return None if same else f"{place} has {writer['size']} bytes, not {reader['size']}"

    def _record(self, reader: Any, writer: Any, place: str) -> str | None:
        pair = (reader["name"], writer["name"])
        if pair in self.met:
            return None
        self.met |= {pair}
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            inside = f"{place}.{field['name']}"
            if found is None:
                if "default" not in field:
                    return f"{inside} is missing in what is written, and the reader has no default for it"
            elif why := self.why(field["type"], found["type"], inside):
                return why
        return None


def _plain(schema: Any, named: Any) -> Any:
    """Return a union, a dict of a complex type, or the name of a primitive one."""
    while True:
        if isinstance(schema, dict):
            inner = schema["type"]
            if isinstance(inner, str) and inner not in named:
                return schema
            schema = inner
        elif isinstance(schema, str) and schema in named:
            return named[schema]
        else:
            return schema


def _kind(schema: Any) -> str:
    kind: str = schema["type"] if isinstance(schema, dict) else schema
    return kind


def _same_name(reader: Any, writer: Any) -> bool:
    """As in Avro, the space of a name does not count; aliases of the reader do."""
    full = writer["name"]
    space = reader["name"].rpartition(".")[0]
    aliases = {name if "." in name or not space else f"{space}.{name}" for name in reader.get("aliases", ())}
    return _last(reader["name"]) == _last(full) or full in aliases


def _has_name_of(reader: Any, writer: Any) -> bool:
    """Return whether both are types with names, and the same."""
    return all(isinstance(one, dict) and "name" in one for one in (reader, writer)) and _same_name(
        reader, writer
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]
