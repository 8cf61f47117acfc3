"""`/openapi.json`: the description of the admin API, made from the endpoints of its calls and their models.

It is made on the first request, so that a broker starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from anabranch.admin.endpoints import PATH_PART, AdminEndpoint
from anabranch.admin.models.body import ErrorBody, plain
from anabranch.admin.models.examples import EXAMPLES

Json = dict[str, Any]

VERSION: Final = "3.1.0"
TEXTS: Final = (str,)
"""Types whose values are sent as they are, not as JSON."""

_SCHEMES: Final[Json] = {
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "basic": {"type": "http", "scheme": "basic"},
}
_REFERENCE: Final = "#/components/schemas/{name}"


def describe(endpoints: Iterable[AdminEndpoint], version: str) -> Json:
    """Return the OpenAPI document of these calls."""
    endpoints = list(endpoints)
    kinds = _Kinds(
        [
            kind
            for endpoint in endpoints
            for kind in (endpoint.body, _content(endpoint.answer))
            if kind is not None
        ]
    )
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        template = PATH_PART.sub(r"{\1}", endpoint.path)
        paths.setdefault(template, {})[endpoint.method.lower()] = _operation(endpoint, kinds)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Anabranch admin API",
            "version": version,
            "description": "Apache Pulsar's admin paths, and those of scalable topics.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {"schemas": kinds.components, "securitySchemes": _SCHEMES},
        "security": [{}, *({name: []} for name in _SCHEMES)],
    }


class _Kinds:
    """The schemas of all types that calls take and give."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        known = list({repr(kind): kind for kind in (*kinds, ErrorBody, int, str, bool, list[str])}.values())
        described, components = msgspec.json.schema_components(known, ref_template=_REFERENCE)
        self._schemas: Mapping[str, Json] = {
            repr(kind): schema for kind, schema in zip(known, described, strict=True)
        }
        for kind, example in EXAMPLES.items():
            if kind.__name__ in components:
                components[kind.__name__]["examples"] = [plain(example)]
        self.components: Json = components

    def __getitem__(self, kind: Any) -> Json:
        return self._schemas[repr(kind)]


def _content(answer: Any) -> Any:
    """Return the type of an answer with content; None if there never is one."""
    kinds = [kind for kind in get_args(answer) or (answer,) if kind is not type(None)]
    if answer is type(None) or answer is bytes:
        return None
    return kinds[0] if type(None) in get_args(answer) and len(kinds) == 1 else answer


def _operation(endpoint: AdminEndpoint, kinds: _Kinds) -> Json:
    described: Json = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.path.removeprefix("/admin/v2/").strip("/").split("/")[0]],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, kinds)],
        "responses": _responses(endpoint, kinds),
    }
    if endpoint.body is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": kinds[endpoint.body]}}}
    return described


def _name(endpoint: AdminEndpoint) -> str:
    """Return a name of the call that no other has: its method and its path."""
    words = endpoint.path.removeprefix("/admin/v2").replace(":path", "")
    return (
        endpoint.method.lower()
        + "".join(
            part[:1].upper() + part[1:]
            for part in words.replace("{", "").replace("}", "").replace("-", "/").replace(".", "/").split("/")
        )
        + ("_" if endpoint.path.endswith("/") else "")
    )


def _path_parameters(endpoint: AdminEndpoint) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in endpoint.parts
    ]


def _query_parameters(endpoint: AdminEndpoint, kinds: _Kinds) -> list[Json]:
    return [{"name": name, "in": "query", "schema": kinds[kind]} for name, kind in endpoint.query.items()]


def _responses(endpoint: AdminEndpoint, kinds: _Kinds) -> Json:
    answered: Json = {}
    content = _content(endpoint.answer)
    if endpoint.answer is bytes:
        binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        answered["200"] = {"description": "the payload", "content": binary}
    elif content is not None:
        media = "text/plain" if content in TEXTS else "application/json"
        answered["200"] = {"description": "done", "content": {media: {"schema": kinds[content]}}}
    if endpoint.answer is type(None) or type(None) in get_args(endpoint.answer):
        answered["204"] = {"description": "done" if content is None else "it is not set"}
    failed = {"application/json": {"schema": kinds[ErrorBody]}}
    return {**answered, "default": {"description": "refused or failed", "content": failed}}
