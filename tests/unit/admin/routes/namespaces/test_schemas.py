"""Schemas and their policies in the admin API, with Pulsar's paths and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.schemas.definitions import KINDS
from tests.harness.admin import CLASSIC, Admin

SCHEMAS = "/admin/v2/schemas/public/default/classic"
NAMESPACE = "/admin/v2/namespaces/public/default"
POLICIES = {
    "schemaCompatibilityStrategy": ("schema_compatibility_strategy", "FORWARD", "UNDEFINED"),
    "isAllowAutoUpdateSchema": ("is_allow_auto_update_schema", False, True),
    "schemaValidationEnforced": ("schema_validation_enforced", True, False),
    "schemaAutoUpdateCompatibilityStrategy": (
        "schema_auto_update_compatibility_strategy",
        "Backward",
        None,
    ),
}


def posted(*names: str, kind: str = "AVRO", default: bool = True) -> dict[str, Any]:
    more: dict[str, Any] = {"default": 0} if default else {}
    fields = [{"name": name, "type": "int", **more} for name in names]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    return {"type": kind, "schema": schema, "properties": {"by": "a test"}}


@pytest.fixture
def topic(admin: Admin) -> str:
    assert admin("PUT", CLASSIC).status == 204
    return SCHEMAS


def test_a_schema_is_added_shown_and_found(admin: Admin, topic: str) -> None:
    missing = admin("GET", f"{topic}/schema")
    assert (missing.status, missing.json["reason"]) == (404, "topic classic in public/default has no schema")
    first, second = posted("a"), posted("a", "b")
    assert admin("POST", f"{topic}/schema", first).json == {"version": 0}
    assert admin("POST", f"{topic}/schema", second).json == {"version": 1}
    assert admin("POST", f"{topic}/schema", first).json == {"version": 0}
    newest = admin("GET", f"{topic}/schema").json
    assert newest == {
        "version": 1,
        "type": "AVRO",
        "timestamp": newest["timestamp"],
        "data": second["schema"],
        "properties": {"by": "a test"},
    }
    assert admin("GET", f"{topic}/schema/0").json["data"] == first["schema"]
    missing = admin("GET", f"{topic}/schema/2")
    assert missing.status == 404
    assert missing.json["reason"].endswith("has no version 2 of its schema")
    both = admin("GET", f"{topic}/schemas").json["getSchemaResponses"]
    assert [found["version"] for found in both] == [0, 1]
    assert admin("POST", f"{topic}/version", second).json == {"version": 1}
    assert admin("POST", f"{topic}/version", posted("c")).json == {"version": -1}


def test_a_scalable_topic_whose_name_holds_slashes_has_schemas(admin: Admin) -> None:
    assert admin("PUT", "/admin/v2/scalable/public/default/a%2Fb").status == 204
    topic = "/admin/v2/schemas/public/default/a%2Fb"
    assert admin("POST", f"{topic}/schema", posted("a")).json == {"version": 0}
    assert admin("GET", f"{topic}/schema").json["version"] == 0
    assert admin("DELETE", f"{topic}/schema").status == 200
    assert admin("GET", f"{topic}/schema").status == 404


def test_compatibility_is_tried_without_a_change(admin: Admin, topic: str) -> None:
    admin("POST", f"{topic}/schema", posted("a"))
    good = admin("POST", f"{topic}/compatibility", posted("a", "b")).json
    assert good == {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    bad = admin("POST", f"{topic}/compatibility", posted("a", "b", default=False)).json
    assert (bad["compatibility"], "no default" in bad["reason"]) == (False, True)
    assert admin("POST", f"{topic}/schema", posted("a", "b", default=False)).status == 409
    assert len(admin("GET", f"{topic}/schemas").json["getSchemaResponses"]) == 1


@pytest.mark.parametrize("force", ["", "?force=true"])
def test_a_deletion_begins_anew_under_higher_numbers(admin: Admin, topic: str, force: str) -> None:
    first = posted("a")
    admin("POST", f"{topic}/schema", first)
    assert admin("DELETE", f"{topic}/schema{force}").json == {"version": 1}
    assert admin("GET", f"{topic}/schema").status == 404
    assert admin("GET", f"{topic}/schemas").json == {"getSchemaResponses": []}
    # Stored messages still name the version.
    assert admin("GET", f"{topic}/schema/0").status == (404 if force else 200)
    other = posted("z", kind="JSON", default=False)
    assert admin("POST", f"{topic}/schema", other).json == {"version": 2}
    assert admin("GET", f"{topic}/schema").json["type"] == "JSON"
    assert admin("DELETE", f"{topic}/schema").json == {"version": 3}
    assert admin("POST", f"{topic}/schema", first).json == {"version": 4}
    assert admin("GET", f"{topic}/schema/4").json["data"] == first["schema"]


def test_bodies_that_cannot_be_understood_are_refused(admin: Admin, topic: str) -> None:
    assert admin("POST", f"{topic}/schema", {"type": "COBOL", "schema": ""}).status == 400
    assert admin("POST", f"{topic}/schema", [1]).status == 400
    assert admin("POST", f"{topic}/schema").status == 400
    assert admin("POST", f"{topic}/schema", {"type": "AVRO", "schema": "{}"}).status == 422
    assert admin("POST", "/admin/v2/schemas/public/default/nothing/schema", posted("a")).status == 404


def test_key_value_schemas_are_shown_as_two_definitions(admin: Admin, topic: str) -> None:
    value = json.loads(posted("a")["schema"])
    body = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": "", "value": value}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
    }
    assert admin("POST", f"{topic}/schema", body).json == {"version": 0}
    shown = admin("GET", f"{topic}/schema").json
    assert (shown["type"], json.loads(shown["data"])) == ("KEY_VALUE", {"key": "", "value": value})
    assert admin("POST", f"{topic}/schema", body | {"schema": "[]"}).status == 422


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("KEY_VALUE", "PROTOBUF_NATIVE")])
def test_every_kind_can_be_added(admin: Admin, topic: str, kind: str) -> None:
    schema = posted("a")["schema"] if kind in ("AVRO", "JSON", "PROTOBUF") else ""
    assert admin("POST", f"{topic}/schema", {"type": kind, "schema": schema}).json == {"version": 0}
    assert admin("GET", f"{topic}/schema").json["type"] == kind


@pytest.mark.parametrize("name", POLICIES)
def test_policies_of_namespaces_are_set_shown_and_removed(admin: Admin, name: str) -> None:
    field, value, unset = POLICIES[name]
    assert admin("GET", f"{NAMESPACE}/{name}").json == unset
    verb = "PUT" if "Strategy" in name else "POST"
    assert admin(verb, f"{NAMESPACE}/{name}", value).status == 204
    assert admin("GET", f"{NAMESPACE}/{name}").json == value
    assert admin("GET", NAMESPACE).json[field] == value
    wrongs: tuple[object, ...] = ("SOME", 1, ["x"])
    for wrong in wrongs:
        assert admin(verb, f"{NAMESPACE}/{name}", wrong).status == 412
        body = {field: wrong}
        assert admin("PUT", "/admin/v2/namespaces/public/other", body).status == 412
    assert admin("DELETE", f"{NAMESPACE}/{name}").status == 204
    assert admin("GET", f"{NAMESPACE}/{name}").json == unset


def test_flags_about_schemas_are_never_null(admin: Admin, topic: str) -> None:
    assert admin("GET", f"{CLASSIC}/schemaValidationEnforced").json is False
    assert admin("POST", f"{NAMESPACE}/schemaValidationEnforced", True).status == 204
    assert admin("GET", f"{CLASSIC}/schemaValidationEnforced").json is False
    assert admin("GET", f"{CLASSIC}/schemaValidationEnforced?applied=true").json is True


def test_policies_of_topics_end_with_the_topic(admin: Admin, topic: str) -> None:
    path = f"{CLASSIC}/schemaCompatibilityStrategy"
    admin("PUT", f"{NAMESPACE}/schemaCompatibilityStrategy", "BACKWARD")
    assert admin("GET", path).json is None
    assert admin("GET", f"{path}?applied=true").json == "BACKWARD"
    assert admin("PUT", path, "FORWARD").status == 204
    assert admin("GET", f"{path}?applied=true").json == "FORWARD"
    assert admin("PUT", path, "NEVER").status == 412
    assert admin("DELETE", CLASSIC).status == 204
    assert admin("PUT", CLASSIC).status == 204
    assert admin("GET", path).json is None


def test_the_older_policy_counts_where_the_newer_is_not_set(admin: Admin, topic: str) -> None:
    admin("PUT", f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", "ForwardTransitive")
    path = f"{NAMESPACE}/schemaCompatibilityStrategy"
    assert admin("GET", f"{path}?applied=true").json == "FORWARD_TRANSITIVE"
    admin("PUT", path, "BACKWARD")
    assert admin("GET", f"{path}?applied=true").json == "BACKWARD"
