"""The formats that a load reads, and the options that each of them accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.queries import is_sink_option, is_source_option
from anabranch.spark.pipelines.loading.iceberg_tables import CATALOG, PASSED, SNAPSHOT, IcebergTable
from anabranch.spark.pipelines.loading.source_files import NewRows, SourceFiles

FORMATS = ("parquet", "csv", "json", "iceberg")
_ENDINGS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
_PACKED = ("gz", "bz2", "zst", "snappy", "lz4")


def _names(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


_FILES = _names(
    "basePath ignoreCorruptFiles ignoreMissingFiles ignoreInvalidPartitionPaths ignoredPathSegmentRegex",
    "modifiedAfter modifiedBefore pathGlobFilter recursiveFileLookup timeZone",
)
_TEXT = _names(
    "charset columnNameOfCorruptRecord dateFormat enableDateTimeParsingFallback encoding lineSep locale mode",
    "multiLine samplingRatio singleVariantColumn timeFormat timestampFormat timestampNTZFormat",
)
_CSV = _names(
    "charToEscapeQuoteEscaping columnPruning comment delimiter emptyValue enforceSchema escape extension",
    "header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema inputBufferSize maxCharsPerColumn",
    "maxColumns nanValue negativeInf nullValue positiveInf preferDate quote sep unescapedQuoteHandling",
)
_JSON = _names(
    "allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros",
    "allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames dropFieldIfAllNull",
    "explodeEmbeddedArray inferTimestamp prefersDecimal primitivesAsString",
)
_KNOWN: Mapping[str, Sequence[str]] = {
    "parquet": (*_FILES, "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
    "csv": (*_FILES, *_TEXT, *_CSV),
    "json": (*_FILES, *_TEXT, *_JSON),
    "iceberg": (CATALOG, SNAPSHOT),
}
"""The options of each format's reader in Spark 4.3, which silently ignores names that it does not know."""


class LoadSource(Protocol):
    """The files or the table whose rows a load sends."""

    def new_rows(self, known: Mapping[str, Sequence[int]]) -> NewRows | None:
        """Return the rows that no earlier run has read, or None if there are none.

        `known` combines NewRows.read of all earlier runs; later ones override earlier ones.
        """


def open_source(spark: Any, path: str, given_format: str | None, options: Mapping[str, str]) -> LoadSource:
    """Return the source of a load; raises InvalidConfigurationError for an unknown option."""
    kind = checked_format(path, given_format)
    for name in options:
        if not knows(kind, name):
            raise InvalidConfigurationError(_unknown(kind, name))
    if kind == "iceberg":
        return IcebergTable(spark, path, options)
    return SourceFiles(spark, path, kind, options)


def checked_format(path: str, given: str | None) -> str:
    """Return the format of a source, as given or by its name; raises InvalidConfigurationError."""
    kind = given or format_of(path)
    if kind is None:
        raise InvalidConfigurationError(
            f"the format of {path} cannot be told from its name; give one of {', '.join(FORMATS)}"
        )
    if kind not in FORMATS:
        raise InvalidConfigurationError(f"cannot load {kind}; the formats are {', '.join(FORMATS)}")
    return kind


def format_of(path: str) -> str | None:
    """Return the format that the name of a file or pattern implies, or None."""
    parts = path.rstrip("/").rpartition("/")[2].lower().split(".")
    if len(parts) > 2 and parts[-2:] == ["metadata", "json"]:
        return "iceberg"
    if len(parts) > 1 and parts[-1] in _PACKED:
        parts.pop()
    return _ENDINGS.get(parts[-1]) if len(parts) > 1 else None


def knows(kind: str, option: str) -> bool:
    """Whether the reader of a format has an option; a name with a dot is a setting of its file system."""
    if kind == "iceberg":
        return option.startswith(PASSED) or option in _KNOWN[kind]
    return "." in option or option.lower() in map(str.lower, _KNOWN[kind])


def divide_options(kind: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide the options of a load into those of its sink and those of its reader.

    Raises InvalidConfigurationError for an option that neither of them has.
    """
    sink, reader = {}, {}
    for name, text in given.items():
        if is_sink_option(name):
            sink[name] = text
        elif is_source_option(name):
            raise InvalidConfigurationError(
                f"option {name} is for reading topics, but load reads files; it accepts options of the sink "
                f"(docs/spark.md) and of the reader of {kind}"
            )
        elif knows(kind, name):
            reader[name] = text
        else:
            raise InvalidConfigurationError(f"{_unknown(kind, name)}, and neither has the sink")
    return sink, reader


def _unknown(kind: str, option: str) -> str:
    names = {name.lower(): name for name in _KNOWN[kind]}
    near = get_close_matches(option.lower(), names, 1, 0.6)
    hint = f" (did you mean {names[near[0]]}?)" if near else ""
    return f"the reader of {kind} has no option {option}{hint}"
