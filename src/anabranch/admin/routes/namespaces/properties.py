"""The properties of classic topics and of namespaces: labels that applications give, over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import MalformedBodyError, as_json
from anabranch.admin.http.calls import Call
from anabranch.errors import InvalidConfigurationError, NotFoundError, TopicNotFoundError
from anabranch.metadata.records import ClassicTopicRecord, NamespaceRecord
from anabranch.model.limits import check_properties
from anabranch.rights.rows import ADMIN, CLASSIC_ADMIN, CLASSIC_LOOK

Properties = dict[str, str]
PROPERTIES = "properties"
"""The name among the policies of a namespace."""


async def show_topic(call: Call) -> Properties:
    """The properties of a classic topic."""
    name = call.topic("persistent")
    record = await call.topics.find_classic(name)
    if record is None:
        raise TopicNotFoundError(f"{name} does not exist")
    return record.properties


async def set_topic(call: Call) -> None:
    """Change the given properties of a classic topic and leave the others."""
    given = await _given(call)
    await _change_topic(call, lambda known: {**known, **given})


async def remove_of_topic(call: Call) -> None:
    """Remove one property of a classic topic."""
    key = call.query("key")
    if not key:
        raise InvalidConfigurationError("key must be given: the property to remove")
    await _change_topic(call, lambda known: {name: value for name, value in known.items() if name != key})


async def _change_topic(call: Call, change: Callable[[Properties], Properties]) -> None:
    def changed(record: ClassicTopicRecord) -> ClassicTopicRecord:
        properties = change(record.properties)
        check_properties("a topic", properties)
        return msgspec.structs.replace(record, properties=properties)

    await call.topics.update_classic(call.topic("persistent"), changed)


async def show_namespace(call: Call) -> Properties:
    """The properties of a namespace."""
    record = await call.topics.namespaces.load_namespace(call.namespace())
    return dict(record.policies.get(PROPERTIES) or {})


async def set_namespace(call: Call) -> None:
    """Change the given properties of a namespace and leave the others."""
    given = await _given(call)
    await _change_namespace(call, lambda known: {**known, **given})


async def clear_namespace(call: Call) -> None:
    """Remove all properties of a namespace."""
    await _change_namespace(call, lambda known: {})


async def show_one(call: Call) -> object:
    """One property of a namespace."""
    found = (await show_namespace(call)).get(call.part("key"))
    if found is None:
        raise NotFoundError(f"{call.namespace()} has no property {call.part('key')!r}")
    return as_json(found)


async def set_one(call: Call) -> None:
    """Set one property of a namespace."""
    key, value = call.part("key"), call.part("value")
    await _change_namespace(call, lambda known: {**known, key: value})


async def remove_one(call: Call) -> object:
    """Remove one property of a namespace; returns its value."""
    shown = await call.once("property", lambda: show_one(call))
    key = call.part("key")
    await _change_namespace(call, lambda known: {name: one for name, one in known.items() if name != key})
    return shown


async def _change_namespace(call: Call, change: Callable[[Properties], Properties]) -> None:
    def changed(record: NamespaceRecord) -> NamespaceRecord:
        properties = change(dict(record.policies.get(PROPERTIES) or {}))
        check_properties("a namespace", properties)
        return msgspec.structs.replace(record, policies={**record.policies, PROPERTIES: properties})

    await call.topics.namespaces.update_namespace(call.namespace(), changed)


async def _given(call: Call) -> Properties:
    given = await call.body(Properties)
    if given is None:
        raise MalformedBodyError("the body must be an object of properties")
    return given


CLASSIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/properties"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

ENDPOINTS = [
    AdminEndpoint("GET", CLASSIC, CLASSIC_LOOK, show_topic, client="classic_properties"),
    AdminEndpoint("PUT", CLASSIC, CLASSIC_ADMIN, set_topic, body=Properties, client="set_classic_properties"),
    AdminEndpoint("DELETE", CLASSIC, CLASSIC_ADMIN, remove_of_topic, query={"key": str}),
    AdminEndpoint("GET", NAMESPACE + "/properties", ADMIN, show_namespace, client="namespace_properties"),
    AdminEndpoint(
        "PUT",
        NAMESPACE + "/properties",
        ADMIN,
        set_namespace,
        body=Properties,
        client="set_namespace_properties",
    ),
    AdminEndpoint("DELETE", NAMESPACE + "/properties", ADMIN, clear_namespace),
    AdminEndpoint("GET", NAMESPACE + "/property/{key}", ADMIN, show_one, returns=str),
    AdminEndpoint("PUT", NAMESPACE + "/property/{key}/{value}", ADMIN, set_one),
    AdminEndpoint("DELETE", NAMESPACE + "/property/{key}", ADMIN, remove_one, returns=str),
]
