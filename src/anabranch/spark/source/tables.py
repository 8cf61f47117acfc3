"""The options of a table in Spark's catalog.

Spark passes the options of `CREATE TABLE ... USING anabranch OPTIONS (...)` only once, when it asks for the
columns of the table. So the source writes them into the comment of the first column, which the catalog stores
and passes along with each query and each INSERT.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from anabranch.errors import InvalidConfigurationError

_MARK = "anabranch "
_PREFIX = "option."
_SECRET = ("token", "secret", "password")

NO_OPTIONS = (
    "option service.url is required, and no option was given. Spark drops the options of a table with a list "
    "of columns: leave the list out of CREATE TABLE t USING anabranch OPTIONS (...), or give the options "
    "with the query: SELECT ... FROM t WITH (`service.url` = '...', subscribe = '...')"
)


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created, or None if this is not CREATE TABLE."""
    if "provider" not in given:
        return None
    found = {name.removeprefix(_PREFIX): text for name, text in given.items() if name.startswith(_PREFIX)}
    for name in found:
        if any(word in name for word in _SECRET):
            raise InvalidConfigurationError(
                f"option {name} would be shown with the table; put the secret into a file "
                "(authParams 'file:///path'), or use a temporary view"
            )
    return found


def with_comment(schema: Any, options: Mapping[str, str]) -> Any:
    """Return the schema, a StructType or DDL, with the options in the comment of its first column."""
    comment = _MARK + json.dumps(dict(sorted(options.items())))
    if isinstance(schema, str):
        first, _, rest = schema.partition(",")
        escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"{first} COMMENT '{escaped}',{rest}"
    first, *rest = schema.fields
    return StructType([StructField(first.name, first.dataType, True, {"comment": comment}), *rest])


def recall_options(schema: Any, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a query: those of its table, if it reads one, and those given with it.

    Options with a service URL are complete, and comments are ignored: a column may carry one of another
    table.
    """
    own = {name.lower(): text for name, text in given.items()}
    if "service.url" in own:
        return own
    for field in schema.fields:
        comment = (field.metadata or {}).get("comment", "")
        if comment.startswith(_MARK + "{"):
            return {**json.loads(comment.removeprefix(_MARK)), **own}
    if not own:
        raise InvalidConfigurationError(NO_OPTIONS)
    return own
