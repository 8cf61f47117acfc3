"""All endpoints of the admin API, in the order in which a request is compared with them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from starlette.responses import Response

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.routes.cluster import brokers, clusters, configuration, metrics
from anabranch.admin.routes.namespaces import (
    permissions,
    policies,
    properties,
    quotas,
    schema_policies,
    schemas,
    tenants,
)
from anabranch.admin.routes.namespaces import subscriptions as namespace_subscriptions
from anabranch.admin.routes.scalable import auto_scale, segments
from anabranch.admin.routes.scalable import subscriptions as scalable_subscriptions
from anabranch.admin.routes.scalable import topics as scalable
from anabranch.admin.routes.topics import (
    lanes,
    live_topics,
    messages,
    subscriptions,
    topic_reports,
    topics,
    upkeep,
)
from anabranch.protocol.connection import SERVER_VERSION
from anabranch.rights.needs import Right
from anabranch.rights.rows import AUTHENTICATED


async def describe_api(call: Call) -> Response:
    """This description of the admin API, as OpenAPI."""
    return Response(description(), media_type="application/json")


@cache
def description() -> bytes:
    """Return the OpenAPI document of all endpoints."""
    # Few brokers are ever asked for it, so they start without the code that makes it.
    from anabranch.admin import openapi
    from anabranch.admin.routes.namespaces import policy_forms

    endpoints = policy_forms.described(ENDPOINTS)
    return msgspec.json.encode(openapi.describe(endpoints, SERVER_VERSION))


# The paths of policies match any last part of a path, so more specific endpoints come first.
ENDPOINTS: Final = (
    *scalable.ENDPOINTS,
    *auto_scale.ENDPOINTS,
    *scalable_subscriptions.ENDPOINTS,
    *lanes.ENDPOINTS,
    *segments.ENDPOINTS,
    *topics.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *topic_reports.ENDPOINTS,
    *live_topics.ENDPOINTS,
    *messages.ENDPOINTS,
    *upkeep.ENDPOINTS,
    *permissions.ENDPOINTS,
    *properties.ENDPOINTS,
    *quotas.ENDPOINTS,
    *schemas.ENDPOINTS,
    *schema_policies.ENDPOINTS,
    *namespace_subscriptions.ENDPOINTS,
    *tenants.ENDPOINTS,
    *clusters.ENDPOINTS,
    *configuration.ENDPOINTS,
    *brokers.ENDPOINTS,
    *metrics.ENDPOINTS,
    AdminEndpoint("GET", "/openapi.json", AUTHENTICATED, describe_api, returns=dict[str, Any]),
    *policies.ENDPOINTS,
)

CALLS: Final = {(one.method, one.path): one.right for one in ENDPOINTS}
"""The right that each call needs, by its method and the template of its path."""

assert len(CALLS) == len(ENDPOINTS), "two endpoints have the same method and path"

OPEN_PATHS: Final = tuple(one.path for one in ENDPOINTS if one.right.right is Right.OPEN)
"""Paths that need no credentials."""
