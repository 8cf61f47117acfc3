"""The OpenAPI description of the admin API: complete, valid, and true of what brokers answer."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.models.body import Body, plain
from anabranch.admin.models.examples import EXAMPLES
from anabranch.admin.routes import table
from anabranch.admin.routes.namespaces.policy_forms import POLICY_PART, described, type_of
from anabranch.admin.routes.scalable.topics import shown_record
from anabranch.metadata.records import (
    GarbageRecord,
    IntentRecord,
    PrunedRecord,
    RangeRecord,
    SegmentRecord,
    TopicRecord,
)
from anabranch.model.names import TopicName
from tests.harness.admin import ORDERS, Admin

DESCRIBED = list(described(table.ENDPOINTS))


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return dict(msgspec.json.decode(table.description()))


def schema_of(description: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    """A validator of a schema that may refer to the components."""
    return Draft202012Validator({**schema, "components": description["components"]})


def test_the_description_is_served(admin: Admin, description: dict[str, Any]) -> None:
    answer = admin("GET", "/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == description


def test_the_description_is_valid_openapi(description: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(description).iter_errors()) == []


def test_every_route_is_described_with_its_parameters(description: dict[str, Any]) -> None:
    found = {(method.upper(), path) for path, calls in description["paths"].items() for method in calls}
    assert found == {(endpoint.method, endpoint.path.replace(":path", "")) for endpoint in DESCRIBED}
    for path, calls in description["paths"].items():
        for call in calls.values():
            names = {one["name"] for one in call["parameters"] if one["in"] == "path"}
            assert names == set(re.findall(r"\{(\w+)\}", path)), path


def test_the_paths_of_single_policies_are_served_by_the_route_of_all_policies() -> None:
    served = set(table.CALLS)
    found = {(endpoint.method, endpoint.path) for endpoint in DESCRIBED}
    assert served - found == {call for call in served if call[1].endswith(POLICY_PART)}
    assert {(verb, f"{path.rpartition('/')[0]}/{POLICY_PART}") for verb, path in found - served} <= served


def test_operations_have_names_of_their_own(description: dict[str, Any]) -> None:
    names = [call["operationId"] for calls in description["paths"].values() for call in calls.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_example_is_valid_and_decodes_to_itself(kind: type, description: dict[str, Any]) -> None:
    example = EXAMPLES[kind]
    if kind.__name__ in description["components"]["schemas"]:
        schema_of(description, {"$ref": f"#/components/schemas/{kind.__name__}"}).validate(plain(example))
    assert msgspec.json.decode(msgspec.json.encode(example), type=kind) == example


@pytest.mark.parametrize(
    ("policy", "good", "bad"),
    [
        ("retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}, 5),
        ("messageTTL", 30, "30"),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, {}),
        ("subscriptionTypesEnabled", ["Shared"], ["Sharing"]),
        ("backlogQuotaMap", {"limitSize": 7, "policy": "producer_exception"}, {"policy": "hope"}),
        ("dispatchRate", {"dispatchThrottlingRateInMsg": 5}, {"dispatchThrottlingRateInMsg": "5"}),
    ],
)
def test_the_type_of_a_policy_takes_its_values_and_no_others(policy: str, good: Any, bad: Any) -> None:
    msgspec.convert(good, type_of(policy))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, type_of(policy))


@pytest.mark.parametrize("endpoint", DESCRIBED, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_answers_have_types(endpoint: AdminEndpoint) -> None:
    assert endpoint.answer is not Any, "annotate what the handler returns"
    assert endpoint.body is not Any, "name the type of the body"


def test_every_body_that_is_used_alone_has_an_example() -> None:
    used = {
        kind for endpoint in DESCRIBED for top in (endpoint.body, endpoint.answer) for kind in bodies_in(top)
    }
    assert used - EXAMPLES.keys() == set()


def bodies_in(kind: Any) -> set[type]:
    """The models in a type."""
    if isinstance(kind, type) and issubclass(kind, Body):
        return {kind}
    return {found for part in get_args(kind) for found in bodies_in(part)}


def test_a_record_with_everything_in_it_can_be_shown() -> None:
    record = TopicRecord(
        epoch=2,
        next_segment_id=3,
        segments={0: SegmentRecord(segment_id=0, hash_range=RangeRecord(start=0, end=0xFFFF))},
        intent=IntentRecord(
            kind="split", steps=(), first_id=1, child_names=(), child_stores=(), started_at_ms=1, term=1
        ),
        garbage=(GarbageRecord(name="x", since_ms=1),),
        pruned={7: PrunedRecord(0, 9, 3)},
        auto_scale_policy={"enabled": False, "maxSegments": 3},
        history={"splits": [1]},
    )
    shown = shown_record(record)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == msgspec.json.decode(msgspec.json.encode(record))
    assert shown.segments[0].hash_range.end == 0xFFFF


async def test_nothing_that_a_leader_tells_is_left_out(admin: Admin) -> None:
    assert (await admin.ask("PUT", ORDERS)).status == 204
    assert (await admin.ask("PUT", f"{ORDERS}/subscriptions/s")).status == 204
    controller = await admin.broker.controllers.controller(TopicName.parse("topic://public/default/orders"))
    for path, told in (("why", await controller.explain()), ("stats", await controller.stats())):
        shown = (await admin.ask("GET", f"{ORDERS}/{path}")).json
        assert told.keys() <= shown.keys()
        for part in ("segments", "subscriptions"):
            for name, figures in told.get(part, {}).items():  # type: ignore[attr-defined]
                assert figures.keys() <= shown[part][name].keys(), (path, part)
