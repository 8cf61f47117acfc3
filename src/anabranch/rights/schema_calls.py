"""The lines of admin calls about schemas, and about the policies of namespaces and topics for them."""

from __future__ import annotations

from typing import Final

from anabranch.rights.lines import ADMIN, CLASSIC_ADMIN, CLASSIC_LOOK, SCALABLE_ADMIN, TableLine

_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
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
    ("GET", _SCHEMAS + "/schema"): CLASSIC_LOOK,
    ("GET", _SCHEMAS + "/schema/{version}"): CLASSIC_LOOK,
    ("GET", _SCHEMAS + "/schemas"): CLASSIC_LOOK,
    ("POST", _SCHEMAS + "/schema"): CLASSIC_ADMIN,
    ("DELETE", _SCHEMAS + "/schema"): CLASSIC_ADMIN,
    ("POST", _SCHEMAS + "/compatibility"): CLASSIC_ADMIN,
    ("POST", _SCHEMAS + "/version"): CLASSIC_LOOK,
    **{
        (verb, f"{path}/{name}"): line
        for path, (line, names) in _PLACES.items()
        for name in names
        for verb in ("GET", "PUT", "POST", "DELETE")
    },
}
