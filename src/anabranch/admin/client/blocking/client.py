# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""The admin client: all its methods in one class."""

from __future__ import annotations

from anabranch.admin.client.blocking.brokers import BrokerMethods
from anabranch.admin.client.blocking.classic import ClassicMethods
from anabranch.admin.client.blocking.lanes import LaneMethods
from anabranch.admin.client.blocking.namespaces import NamespaceMethods
from anabranch.admin.client.blocking.quotas import QuotaMethods
from anabranch.admin.client.blocking.rights import RightMethods
from anabranch.admin.client.blocking.scalable import ScalableMethods
from anabranch.admin.client.blocking.schemas import SchemaMethods
from anabranch.admin.client.blocking.subscriptions import SubscriptionMethods


class AdminClient(
    BrokerMethods,
    NamespaceMethods,
    RightMethods,
    QuotaMethods,
    ScalableMethods,
    ClassicMethods,
    SubscriptionMethods,
    LaneMethods,
    SchemaMethods,
):
    """Tenants, namespaces, topics, schemas, subscriptions, rights, quotas and brokers of one cluster.

    `authentication` proves the role of each request, as that of Client does. A topic is named by
    `topic://tenant/namespace/name` or `persistent://...`. A name without a scheme is a scalable topic, or a
    persistent one for methods about classic topics. Answers are the models of `anabranch.admin.models`.

    Each method takes a `timeout` in seconds, else `timeout_s` of the client holds, redirects and repetitions
    included. An error of the broker is raised as the class that says what a caller can do: NotFoundError,
    ConflictError, InvalidConfigurationError, AuthenticationError, AuthorizationError, NotAllowedError,
    TooManyRequestsError, ServiceNotReadyError; ConnectError and OperationTimeoutError if it did not answer.

    >>> with AdminClient("http://127.0.0.1:8080") as admin:
    ...     admin.create_topic("orders", segments=2)
    ...     metadata = admin.topic_metadata("orders")
    >>> len(metadata.segments)
    2
    """
