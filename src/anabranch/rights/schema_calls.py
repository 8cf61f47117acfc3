"""The lines of admin calls about schemas, and about the policies of namespaces and topics for them."""

from __future__ import annotations

from functools import partial
from typing import Final

from anabranch.rights.lines import ADMIN, CLASSIC_ADMIN, SCALABLE_ADMIN, Part, TableLine, name_in
from anabranch.rights.needs import Need, Right, on_topic

_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def _of_name(right: Right, part: Part) -> tuple[Need, ...]:
    return (on_topic(right, name_in(part)),)


_LOOK: Final = TableLine(Right.LOOK_UP, partial(_of_name, Right.LOOK_UP))
_ADMIN: Final = TableLine(Right.TENANT_ADMIN, partial(_of_name, Right.TENANT_ADMIN))
_PLACES: Final = {
    "/admin/v2/namespaces/{tenant}/{namespace}": (
        ADMIN,
        (
            "schemaCompatibilityStrategy",
            "schemaAutoUpdateCompatibilityStrategy",
            "isAllowAutoUpdateSchema",
            "schemaValidationEnforced",
        ),
    ),
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}": (
        CLASSIC_ADMIN,
        ("schemaCompatibilityStrategy", "schemaValidationEnforced"),
    ),
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}": (
        SCALABLE_ADMIN,
        ("schemaCompatibilityStrategy", "schemaValidationEnforced"),
    ),
}

SCHEMA_CALLS: Final[dict[tuple[str, str], TableLine]] = {
    ("GET", _SCHEMAS + "/schema"): _LOOK,
    ("GET", _SCHEMAS + "/schema/{version}"): _LOOK,
    ("GET", _SCHEMAS + "/schemas"): _LOOK,
    ("POST", _SCHEMAS + "/schema"): _ADMIN,
    ("DELETE", _SCHEMAS + "/schema"): _ADMIN,
    ("POST", _SCHEMAS + "/compatibility"): _ADMIN,
    ("POST", _SCHEMAS + "/version"): _LOOK,
    **{
        (verb, f"{path}/{name}"): line
        for path, (line, names) in _PLACES.items()
        for name in names
        for verb in ("GET", "PUT", "POST", "DELETE")
    },
}
