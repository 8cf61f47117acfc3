"""Tenants and namespaces, and the policies of namespaces."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.admin.models.tenants import TenantInfo
from anabranch.admin.routes.namespaces.permissions import check_auth_policies, checked_role
from anabranch.admin.routes.namespaces.policies import check_mode
from anabranch.admin.routes.namespaces.quotas import check_new_namespace
from anabranch.admin.routes.topics.topics import delete_topic
from anabranch.errors import InvalidConfigurationError, MetadataError, TopicNotFoundError
from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.metadata.topics import ClassicDomain
from anabranch.model.limits import check_properties
from anabranch.model.names import validate_entity
from anabranch.model.policies.new_namespace import check_policies
from anabranch.rights.grants import SUBSCRIPTION_MODE, grants_of
from anabranch.rights.rows import ADMIN, NAMES, SUPERUSER, TENANT
from anabranch.schemas.policies import check_schema_policies


async def list_tenants(call: Call) -> list[str]:
    return list(await call.topics.namespaces.tenants())


async def get_tenant(call: Call) -> TenantInfo:
    record = await call.topics.namespaces.load_tenant(call.part("tenant"))
    return TenantInfo(admin_roles=list(record.admin_roles), allowed_clusters=list(record.allowed_clusters))


async def create_tenant(call: Call) -> None:
    validate_entity("tenant", call.part("tenant"))
    record = await _tenant(call)
    await call.topics.namespaces.create_tenant(call.part("tenant"), record)
    call.note_change(f"admins of the tenant: {', '.join(record.admin_roles) or 'none'}")


async def update_tenant(call: Call) -> None:
    record = await _tenant(call)

    def change(known: TenantRecord) -> TenantRecord:
        return msgspec.structs.replace(record, quotas=known.quotas)

    await call.topics.namespaces.update_tenant(call.part("tenant"), change)
    call.note_change(f"admins of the tenant: {', '.join(record.admin_roles) or 'none'}")


async def _tenant(call: Call) -> TenantRecord:
    cluster = call.broker.config.cluster
    given = await call.body(TenantInfo) or TenantInfo()
    clusters = (cluster,) if given.allowed_clusters is None else tuple(given.allowed_clusters)
    unknown = [name for name in clusters if name != cluster]
    if unknown:
        raise InvalidConfigurationError(f"there is no cluster {unknown[0]!r}; this one is {cluster!r}")
    # Some tools send a list with an empty text for no role.
    roles = tuple(checked_role(role) for role in given.admin_roles or () if role)
    return TenantRecord(admin_roles=roles, allowed_clusters=clusters)


async def delete_tenant(call: Call) -> None:
    await call.topics.namespaces.delete_tenant(call.part("tenant"))


async def list_namespaces(call: Call) -> list[str]:
    await call.topics.namespaces.load_tenant(call.part("tenant"))
    return list(await call.topics.namespaces.of_tenant(call.part("tenant")))


async def create_namespace(call: Call) -> None:
    validate_entity("namespace", call.part("namespace"))
    policies = _new_policies(
        call.namespace(), await call.body(dict[str, Any]) or {}, call.broker.config.cluster
    )
    await check_new_namespace(call)
    await call.topics.namespaces.create_namespace(call.namespace(), NamespaceRecord(policies=policies))
    if roles := sorted(grants_of(call.namespace(), policies).roles):
        call.note_change(f"with rights of {', '.join(roles)}")


def _new_policies(namespace: str, given: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Return the policies of a new namespace as they are stored: each has the form in which it is shown."""
    policies = check_policies(given, cluster)
    check_auth_policies(namespace, policies)
    check_schema_policies(policies)
    check_mode(SUBSCRIPTION_MODE, policies.get(SUBSCRIPTION_MODE))
    try:
        typed = msgspec.convert(policies, NamespacePolicies)
    except msgspec.ValidationError as error:
        raise InvalidConfigurationError(f"the policies have the wrong form: {error}") from error
    check_properties("a namespace", typed.properties or {})
    return policies


async def get_namespace(call: Call) -> NamespacePolicies:
    record = await call.topics.namespaces.load_namespace(call.namespace())
    shown = {
        "auth_policies": {},
        "replication_clusters": [call.broker.config.cluster],
        "bundles": {},
        **record.policies,
        "scalableTopicAutoScalePolicy": record.scalable_topic_auto_scale_policy,
    }
    try:
        return msgspec.convert(shown, NamespacePolicies)
    except msgspec.ValidationError as error:
        # An earlier version stored policies of any form.
        raise MetadataError(f"the stored policies of {call.namespace()} are malformed: {error}") from error


async def delete_namespace(call: Call) -> None:
    namespace = call.namespace()
    if call.flag("force"):
        await call.topics.namespaces.load_namespace(namespace)
        for name in await call.topics.list(namespace):
            with suppress(TopicNotFoundError):
                await call.broker.controllers.delete_topic(name, force=True)
        domains: tuple[ClassicDomain, ...] = ("persistent", "non-persistent")
        for name in [one for domain in domains for one in await call.topics.list_classic(namespace, domain)]:
            # The deletion of a topic removes its partitions from the list.
            with suppress(TopicNotFoundError):
                await delete_topic(call, name, force=True)
    await call.topics.delete_namespace(namespace)


async def list_topics(call: Call) -> list[str]:
    """The classic topics of a namespace, its live topics, or both, as `mode` says."""
    mode, namespace = call.query("mode") or "PERSISTENT", call.namespace()
    if mode not in LISTED:
        raise InvalidConfigurationError(f"mode must be one of {', '.join(LISTED)}, not {mode!r}")
    await call.topics.namespaces.load_namespace(namespace)
    listed = call.broker.classic.list
    return [str(name) for domain in LISTED[mode] for name in await listed(namespace, domain)]


LISTED: Final[dict[str, tuple[ClassicDomain, ...]]] = {
    "PERSISTENT": ("persistent",),
    "NON_PERSISTENT": ("non-persistent",),
    "ALL": ("persistent", "non-persistent"),
}
"""The schemes of topics for each mode of a list."""

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces/{tenant}"
NAMESPACE = NAMESPACES + "/{namespace}"

ENDPOINTS = [
    AdminEndpoint("GET", TENANTS, SUPERUSER, list_tenants, client="tenants"),
    AdminEndpoint("GET", TENANTS + "/{tenant}", TENANT, get_tenant, client="tenant"),
    AdminEndpoint(
        "PUT", TENANTS + "/{tenant}", SUPERUSER, create_tenant, body=TenantInfo, client="create_tenant"
    ),
    AdminEndpoint(
        "POST", TENANTS + "/{tenant}", SUPERUSER, update_tenant, body=TenantInfo, client="set_tenant"
    ),
    AdminEndpoint("DELETE", TENANTS + "/{tenant}", SUPERUSER, delete_tenant, client="delete_tenant"),
    AdminEndpoint("GET", NAMESPACES, TENANT, list_namespaces, client="namespaces"),
    AdminEndpoint(
        "PUT", NAMESPACE, ADMIN, create_namespace, body=NamespacePolicies, client="create_namespace"
    ),
    AdminEndpoint("GET", NAMESPACE, ADMIN, get_namespace, client="namespace_policies"),
    AdminEndpoint(
        "DELETE", NAMESPACE, ADMIN, delete_namespace, query={"force": bool}, client="delete_namespace"
    ),
    AdminEndpoint("GET", NAMESPACE + "/topics", NAMES, list_topics, query={"mode": str}),
]
