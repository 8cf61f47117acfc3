"""The admin client: all its methods in one class."""

from __future__ import annotations

from anabranch.admin.client.asynchronous.brokers import AsyncBrokerMethods
from anabranch.admin.client.asynchronous.classic import AsyncClassicMethods
from anabranch.admin.client.asynchronous.lanes import AsyncLaneMethods
from anabranch.admin.client.asynchronous.namespaces import AsyncNamespaceMethods
from anabranch.admin.client.asynchronous.quotas import AsyncQuotaMethods
from anabranch.admin.client.asynchronous.rights import AsyncRightMethods
from anabranch.admin.client.asynchronous.scalable import AsyncScalableMethods
from anabranch.admin.client.asynchronous.schemas import AsyncSchemaMethods
from anabranch.admin.client.asynchronous.subscriptions import AsyncSubscriptionMethods


class AsyncAdminClient(
    AsyncBrokerMethods,
    AsyncNamespaceMethods,
    AsyncRightMethods,
    AsyncQuotaMethods,
    AsyncScalableMethods,
    AsyncClassicMethods,
    AsyncSubscriptionMethods,
    AsyncLaneMethods,
    AsyncSchemaMethods,
):
    """Tenants, namespaces, topics, schemas, subscriptions, rights, quotas and brokers of one cluster.

    `authentication` proves the role of each request, as that of AsyncClient does. A topic is named by
    `topic://tenant/namespace/name` or `persistent://...`. A name without a scheme is a scalable topic, or a
    persistent one for methods about classic topics. Answers are the models of `anabranch.admin.models`.

    Each method takes a `timeout` in seconds, else `timeout_s` of the client holds, redirects and repetitions
    included. An error of the broker is raised as the class that says what a caller can do: NotFoundError,
    ConflictError, InvalidConfigurationError, AuthenticationError, AuthorizationError, NotAllowedError,
    TooManyRequestsError, ServiceNotReadyError; ConnectError and OperationTimeoutError if it did not answer.

    >>> async with AsyncAdminClient("http://127.0.0.1:8080") as admin:
    ...     await admin.create_topic("orders", segments=2)
    ...     metadata = await admin.topic_metadata("orders")
    >>> len(metadata.segments)
    2
    """
