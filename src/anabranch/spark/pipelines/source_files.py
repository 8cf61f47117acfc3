"""The files that a load reads: their format, their changes, and their rows. Knows no topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.pipelines.files import Files

FORMATS = ("parquet", "csv", "json")
_ENDINGS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
_PACKED = ("gz", "bz2", "zst", "snappy", "lz4")
_PATTERN = "*?[{"
_STRICT = {"mode": "FAILFAST"}
"""Spark's default mode passes on a row that it cannot parse, with null or without some of its fields."""
_DEFAULTS: Mapping[str, Mapping[str, str]] = {"csv": {"header": "true", **_STRICT}, "json": _STRICT}
"""Options of Spark's readers; without `inferSchema`, every column of a CSV file stays the text that it is."""


@dataclass(frozen=True)
class SourceFiles:
    """The files below a path, or those that a pattern matches."""

    spark: Any
    path: str
    format: str | None
    """parquet, csv or json; by the name of the path if None."""
    read_options: Mapping[str, str]

    def stamps(self) -> dict[str, list[int]]:
        """Return the size and the time of change of each file."""
        files = Files(self.spark, self._root())
        found = [files.look_up(str(url)) for url in self._reader().load(self.path).inputFiles()]
        return {one.path: [one.size_bytes, one.modified_at_ms] for one in found}

    def rows(self, urls: Sequence[str]) -> Any:
        """Return the rows of some of the files, with the columns that the names of directories give."""
        root, reader = Files(self.spark, self._root()), self._reader()
        # Spark looks for such columns below the paths that it is given, which are single files here.
        if root.is_directory() and not self._is_given("basePath"):
            reader = reader.option("basePath", root.url())
        return reader.load(list(urls))

    def _root(self) -> str:
        """Return the path, or the directory that contains all files of a pattern."""
        at = min((self.path.find(sign) for sign in _PATTERN if sign in self.path), default=None)
        if at is None:
            return self.path
        directory, slash, _ = self.path[:at].rpartition("/")
        return f"{directory}{slash}" or "."

    def _reader(self) -> Any:
        kind = self.format or format_of(self.path)
        if kind is None:
            raise InvalidConfigurationError(
                f"the name {self.path} does not tell the format; give one of {', '.join(FORMATS)}"
            )
        if kind not in FORMATS:
            raise InvalidConfigurationError(f"cannot load {kind}; the formats are {', '.join(FORMATS)}")
        defaults = {name: text for name, text in _DEFAULTS.get(kind, {}).items() if not self._is_given(name)}
        return self.spark.read.format(kind).options(**defaults, **self.read_options)

    def _is_given(self, option: str) -> bool:
        return option.lower() in map(str.lower, self.read_options)


def format_of(path: str) -> str | None:
    """Return the format that the name of a file or pattern tells; None if it does not tell one."""
    parts = path.rstrip("/").rpartition("/")[2].lower().split(".")
    if len(parts) > 1 and parts[-1] in _PACKED:
        parts.pop()
    return _ENDINGS.get(parts[-1]) if len(parts) > 1 else None
