"""The files that a load reads: their changes, and their rows. Knows no topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files

_PATTERN = "*?[{"
_STRICT = {"mode": "FAILFAST"}
"""Spark's default mode passes on a row that it cannot parse, with null or without some of its fields."""
_DEFAULTS: Mapping[str, Mapping[str, str]] = {"csv": {"header": "true", **_STRICT}, "json": _STRICT}
"""Options of Spark's readers; without `inferSchema`, every column of a CSV file stays the text that it is."""


def has_made_up_names(columns: Sequence[str]) -> bool:
    """Whether Spark may have changed names of a header line, which then differ from those in the files.

    Spark calls a column without a name `_c` and its number, and adds their numbers to equal names.
    """
    plain = [name.lower().removesuffix(str(at)) for at, name in enumerate(columns)]
    numbered = [base for base, name in zip(plain, columns, strict=True) if len(base) < len(name)]
    return "_c" in numbered or len(set(numbered)) < len(numbered)


class NewRows(NamedTuple):
    """Rows of a source that no earlier run of a load has read."""

    read: Mapping[str, list[int]]
    """By the name of a part of the source: the state in which it was read. A later run gets this back."""
    files: int
    """The number of files with these rows."""
    frame: Any
    place: Sequence[Any]
    """Columns that order the files, and the parts of each; rows inside of a part follow each other."""


@dataclass(frozen=True)
class SourceFiles:
    """The files below a path, or those that a pattern matches."""

    spark: Any
    path: str
    format: str
    """parquet, csv or json."""
    read_options: Mapping[str, str]

    def new_rows(self, known: Mapping[str, Sequence[int]]) -> NewRows | None:
        """Return the rows of files that are not known; raises PipelineError if a known file changed."""
        from pyspark.sql import functions as sql

        found = self.stamps()
        changed = [url for url in known if url in found and found[url] != list(known[url])]
        if changed:
            raise PipelineError(
                f"{changed[0]} changed after its rows were read; give a changed file another name, or load "
                "it with another --state directory, which sends all its rows again"
            )
        new = {url: stamp for url, stamp in found.items() if url not in known}
        if not new:
            return None
        frame = self.rows(sorted(new))
        hidden = frame.metadataColumn("_metadata")
        # Spark gives a URL, whose encoded letters have another order; a plus sign in it is no space.
        path = sql.replace(hidden.getField("file_path"), sql.lit("+"), sql.lit("%2B"))
        place = (sql.url_decode(path), hidden.getField("file_block_start"))
        return NewRows(new, len(new), frame, place)

    def stamps(self) -> dict[str, list[int]]:
        """Return the size and the time of change of each file."""
        from pyspark.errors import AnalysisException

        files = Files(self.spark, self._root())
        try:
            frame = self._reader().load(self.path)
        except AnalysisException as error:
            if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            raise PipelineError(f"{self.path} has no {self.format} file with columns") from None
        found = [files.look_up(str(url)) for url in frame.inputFiles()]
        return {one.path: [one.size_bytes, one.modified_at_ms] for one in found}

    def rows(self, urls: Sequence[str]) -> Any:
        """Return the rows of some of the files, with the columns that the names of directories give."""
        root, reader = Files(self.spark, self._root()), self._reader()
        # Spark looks for such columns below the paths that it is given, which are single files here.
        if root.is_directory() and not self._is_given("basePath"):
            reader = reader.option("basePath", root.url())
        if self.format == "parquet" and not self._is_given("mergeSchema"):
            # Spark would read the columns of one file, and leave out those that only other files have.
            reader = reader.option("mergeSchema", "true")
        frame = reader.load(list(urls))
        if self._can_compare_headers(frame.columns, urls):
            # Spark would give the names of one file to the columns of all files, by their place in a line.
            frame = reader.option("enforceSchema", "false").schema(frame.schema).load(list(urls))
        return frame

    def _can_compare_headers(self, columns: Sequence[str], urls: Sequence[str]) -> bool:
        given = any(map(self._is_given, ("enforceSchema", "singleVariantColumn")))
        return self.format == "csv" and len(urls) > 1 and not given and not has_made_up_names(columns)

    def _root(self) -> str:
        """Return the path, or the directory that contains all files of a pattern."""
        at = min((self.path.find(sign) for sign in _PATTERN if sign in self.path), default=None)
        if at is None:
            return self.path
        directory, slash, _ = self.path[:at].rpartition("/")
        return f"{directory}{slash}" or "."

    def _reader(self) -> Any:
        defaults = {
            name: text for name, text in _DEFAULTS.get(self.format, {}).items() if not self._is_given(name)
        }
        return self.spark.read.format(self.format).options(**defaults, **self.read_options)

    def _is_given(self, option: str) -> bool:
        return option.lower() in map(str.lower, self.read_options)
