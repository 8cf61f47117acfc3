"""`anabranch schema ...`: the registered schemas of topics, over the admin API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.admin.models.schemas import PostedSchema, SchemaInfo
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Topic, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.cli.topics.classic import topic_of
from anabranch.errors import InvalidConfigurationError, NotFoundError

app = command_group("schema", "Show, add and delete the registered schemas of topics.", help_epilogue="")

Kind = Annotated[str, Parameter(name="--type", metavar="TYPE", help="AVRO, JSON, PROTOBUF, STRING...")]
Definition = Annotated[str, Parameter(name="--file", metavar="FILE", help="the definition of the schema")]


@app.command
def show(
    topic: Topic,
    /,
    *,
    version: Annotated[int | None, Parameter(metavar="N", help="the version (the newest)")] = None,
    at: AdminOptions = ADMIN,
) -> int:
    """Show one version of the schema of a topic."""
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.schema(topic_of(topic), version)
    return tell(plain(found), _line(found), found.data, as_json=at.as_json)


@app.command(name="list")
def list_versions(topic: Topic, /, *, at: AdminOptions = ADMIN) -> int:
    """List the versions of the schema of a topic, the oldest first."""
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.schemas(topic_of(topic))
    return tell(plain(found), *map(_line, found), as_json=at.as_json)


@app.command
def add(topic: Topic, /, *, kind: Kind, file: Definition, at: AdminOptions = ADMIN) -> int:
    """Add a version, if it is compatible with the versions before it."""
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        made = admin.add_schema(name, _posted(kind, file))
    return tell(plain(made), f"version {made.version} of the schema of {name}", as_json=at.as_json)


@app.command
def check(topic: Topic, /, *, kind: Kind, file: Definition, at: AdminOptions = ADMIN) -> int:
    """Say whether a schema is compatible; exits with 1 if not."""
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.check_schema(topic_of(topic), _posted(kind, file))
    reason = f": {found.reason}" if found.reason else ""
    word = "compatible" if found.compatibility else "not compatible"
    tell(plain(found), f"{word} ({found.schema_compatibility_strategy}){reason}", as_json=at.as_json)
    return 0 if found.compatibility else 1


@app.command
def delete(topic: Topic, /, *, yes: Yes = False, at: AdminOptions = ADMIN) -> int:
    """Delete all versions of the schema of a topic."""
    name = topic_of(topic)
    if not confirmed(f"delete the schema of {name}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        if admin.delete_schema(name).version < 0:
            raise NotFoundError(f"{name} has no schema")
    return tell({"deleted": str(name)}, f"deleted the schema of {name}", as_json=at.as_json)


def _posted(kind: str, file: str) -> PostedSchema:
    try:
        return PostedSchema(type=kind.upper(), schema=Path(file).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigurationError(f"cannot read {file}: {error}") from None


def _line(found: SchemaInfo) -> str:
    return f"version {found.version}, {found.type}"
