"""The files that a load reads: which are new or changed, and their rows. It must not know topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.spark.pipelines.failures import PipelineError, reason_of
from anabranch.spark.pipelines.files import Files

_PATTERN = "*?[{"
_STRICT = {"mode": "FAILFAST"}
"""In its default mode, Spark keeps a row that it cannot parse, with nulls or without some of its fields."""
_CORRUPT = "columnNameOfCorruptRecord"
_TEXT = {**_STRICT, _CORRUPT: "_anabranch_corrupt_record"}
"""Spark would not read a column of the files that has its usual name for rows that it cannot parse."""
_DEFAULTS: Mapping[str, Mapping[str, str]] = {"csv": {"header": "true", **_TEXT}, "json": _TEXT}
"""Default options of Spark's readers. Without `inferSchema`, every column of a CSV file stays text."""


def has_made_up_names(columns: Sequence[str]) -> bool:
    """Whether Spark may have changed names of the header line, so that they differ from those in the files.

    Spark names a column without a name `_c` and its number, and appends their numbers to equal names.
    """
    plain = [name.lower().removesuffix(str(at)) for at, name in enumerate(columns)]
    numbered = [base for base, name in zip(plain, columns, strict=True) if len(base) < len(name)]
    return "_c" in numbered or len(set(numbered)) < len(numbered)


class NewRows(NamedTuple):
    """Rows of a source that no earlier run of a load has read."""

    read: Mapping[str, list[int]]
    """By the name of a part of the source, the state in which it was read. Later runs get this as `known`."""
    files: int
    """The number of files with these rows."""
    frame: Any
    place: Sequence[Any]
    """Columns that order the files and the parts of each file; rows within a part are already in order."""


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
        # Spark gives an encoded URL, which sorts differently. A plus sign in it does not mean a space.
        path = sql.replace(hidden.getField("file_path"), sql.lit("+"), sql.lit("%2B"))
        place = (sql.url_decode(path), hidden.getField("file_block_start"))
        return NewRows(new, len(new), frame, place)

    def stamps(self) -> dict[str, list[int]]:
        """Return the size and the modification time of each file."""
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
        """Return the rows of some of the files, with the columns that follow from directory names."""
        root, reader = Files(self.spark, self._root()), self._reader()
        # Spark looks for such columns below the given paths, which are single files here.
        if root.is_directory() and not self._is_given("basePath"):
            reader = reader.option("basePath", root.url())
        if self.format == "parquet" and not self._is_given("mergeSchema"):
            # Otherwise Spark would take the columns of one file, and leave out those of other files.
            reader = reader.option("mergeSchema", "true")
        frame = self._named(reader, self._loaded(reader, urls), urls)
        if self._has_headers_to_compare(urls):
            if has_made_up_names(frame.columns):
                self._compare_headers(urls)
            else:
                # Otherwise Spark would give one file's names to the columns of all files, by position.
                frame = reader.option("enforceSchema", "false").schema(frame.schema).load(list(urls))
        return frame

    def _loaded(self, reader: Any, urls: Sequence[str]) -> Any:
        """Return the rows; raises PipelineError with the column whose types differ between Parquet files."""
        try:
            return reader.load(list(urls))
        except Exception as error:
            if "CANNOT_MERGE_SCHEMAS" not in str(error):
                raise
            raise PipelineError(self._difference(urls) or reason_of(error)) from error

    def _difference(self, urls: Sequence[str]) -> str | None:
        known: dict[str, tuple[str, str]] = {}
        for url in urls:
            for name, kind in self._reader().load(url).dtypes:
                before, file = known.setdefault(name.lower(), (kind, url))
                if before != kind:
                    return (
                        f"column {name} is {before} in {file} and {kind} in {url}; write all files with one "
                        "type, or load the files of each type in a separate run, with a pattern as source"
                    )
        return None

    def _named(self, reader: Any, frame: Any, urls: Sequence[str]) -> Any:
        """Return the frame with Spark's usual name for the column of unparsable rows, if there is one."""
        if self._is_given(_CORRUPT) or _TEXT[_CORRUPT] not in frame.columns:
            return frame
        usual = self.spark.conf.get("spark.sql.columnNameOfCorruptRecord")
        if usual in frame.columns:
            raise PipelineError(
                f"{self.path} has rows that cannot be parsed, and a column {usual}, which is Spark's name "
                f"for such rows; choose another name for them with --read-option {_CORRUPT}=NAME"
            )
        return reader.option(_CORRUPT, usual).load(list(urls))

    def _has_headers_to_compare(self, urls: Sequence[str]) -> bool:
        given = any(map(self._is_given, ("enforceSchema", "singleVariantColumn")))
        return self.format == "csv" and len(urls) > 1 and not given and self._has_headers()

    def _has_headers(self) -> bool:
        found = [text for name, text in self.read_options.items() if name.lower() == "header"]
        return not found or found[-1].lower() == "true"

    def _compare_headers(self, urls: Sequence[str]) -> None:
        """Read the header lines one by one; raise PipelineError if they differ."""
        plain = self._reader().option("header", "false").option("inferSchema", "false")
        first: tuple[str, list[str]] | None = None
        for url in urls:
            # An empty file has no columns.
            rows = plain.load(url)
            line = rows.first() if rows.columns else None
            if line is None:
                continue
            names = [(name or "").lower() for name in line]
            first = first or (url, names)
            if names != first[1]:
                raise PipelineError(
                    f"{url} has another header line than {first[0]}; load each in a separate run, with a "
                    "pattern as source, or use the names of one file for all with --read-option "
                    "enforceSchema=true"
                )

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
