"""The policy of auto-scaling that a topic or a namespace sets itself, over HTTP."""

from __future__ import annotations

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.scalable import AutoScaleOverride
from anabranch.metadata import records
from anabranch.model.scaling.policy import check_override, resolve
from anabranch.rights.rows import ADMIN, SCALABLE_ADMIN


async def get_policy(call: Call) -> AutoScaleOverride | None:
    return _override((await call.record()).auto_scale_policy)


def _override(policy: records.PolicyFields | None) -> AutoScaleOverride | None:
    return None if policy is None else msgspec.convert(policy, AutoScaleOverride)


async def set_policy(call: Call) -> None:
    override = check_override(await call.body(dict[str, object]) or {})
    await (await call.leader()).set_policy(override)


async def delete_policy(call: Call) -> None:
    await (await call.leader()).set_policy(None)


async def get_namespace_policy(call: Call) -> AutoScaleOverride | None:
    record = await call.topics.namespaces.load_namespace(call.namespace())
    return _override(record.scalable_topic_auto_scale_policy)


async def set_namespace_policy(call: Call) -> None:
    override = check_override(await call.body(dict[str, object]) or {})
    resolve(call.broker.config.auto_scale, override)
    await _store_namespace_policy(call, override)


async def delete_namespace_policy(call: Call) -> None:
    await _store_namespace_policy(call, None)


async def _store_namespace_policy(call: Call, policy: records.PolicyFields | None) -> None:
    await call.topics.namespaces.update_namespace(
        call.namespace(),
        lambda record: msgspec.structs.replace(record, scalable_topic_auto_scale_policy=policy),
    )


TOPIC_POLICY = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy"
NAMESPACE_POLICY = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"

ENDPOINTS = [
    AdminEndpoint("GET", TOPIC_POLICY, SCALABLE_ADMIN, get_policy, client="auto_scale_policy"),
    AdminEndpoint(
        "POST",
        TOPIC_POLICY,
        SCALABLE_ADMIN,
        set_policy,
        body=AutoScaleOverride,
        client="set_auto_scale_policy",
    ),
    AdminEndpoint("DELETE", TOPIC_POLICY, SCALABLE_ADMIN, delete_policy, client="remove_auto_scale_policy"),
    AdminEndpoint("GET", NAMESPACE_POLICY, ADMIN, get_namespace_policy),
    AdminEndpoint("POST", NAMESPACE_POLICY, ADMIN, set_namespace_policy, body=AutoScaleOverride),
    AdminEndpoint("DELETE", NAMESPACE_POLICY, ADMIN, delete_namespace_policy),
]
