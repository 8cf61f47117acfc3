"""The quotas of all namespaces and tenants, as the metadata store has them now, and the refusals they caused.

The rates of served topics follow each change at once. This module must not know connections or other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from anabranch.broker.catalog.policy_book import PolicyBook
from anabranch.broker.serving.rates.throttles import Throttles
from anabranch.config.broker import BrokerConfig
from anabranch.config.dynamic import with_values
from anabranch.errors import AnabranchError, InvalidConfigurationError, LimitExceededError
from anabranch.metadata import records
from anabranch.metadata.configuration import CONFIGURATION, ConfigurationStore
from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.metadata.topic_room import TopicLimit, TopicRoom
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName, decode_part
from anabranch.model.policies.of_topics import topic_key, topic_policies
from anabranch.model.quotas import (
    NO_TENANT_QUOTAS,
    NamespaceQuotas,
    TenantQuotas,
    namespace_quotas,
    tenant_quotas,
    topic_quotas,
)
from anabranch.transport.seldom import Seldom

_logger = logging.getLogger(__name__)

RETRY_S = 1.0


class QuotaBook:
    """Answers without waiting; a change of a record takes effect as soon as the metadata store shows it."""

    def __init__(
        self, config: BrokerConfig, topics: TopicStore, throttles: Throttles, wall_ms: Callable[[], int]
    ) -> None:
        self.throttles = throttles
        throttles.of_topic, throttles.of_tenant = self.of_topic, self.of_tenant
        self.refusals: Counter[tuple[str, str]] = Counter()
        """By policy and tenant; the numbers only grow."""
        self.config = self._given = config
        """The settings as they are now, with those that were changed while brokers run."""
        self._default = config.namespace_quotas()
        self._namespaces: dict[str, NamespaceQuotas] = {}
        self._of_topics: dict[str, dict[str, dict[str, Any]]] = {}
        """The policies of single topics, by namespace and topic."""
        self.policies = PolicyBook(config)
        """All policies but counts and rates."""
        self._tenants: dict[str, TenantQuotas] = {}
        self._records = topics.namespaces
        topics.room = TopicRoom(self._records, wall_ms, self.topic_limits, self.refuse)
        self._changed: dict[tuple[str, str], None] = {}
        self._news = asyncio.Event()
        self._undo: list[Callable[[], None]] = []
        self._warnings = Seldom(_logger)

    def of_namespace(self, namespace: str) -> NamespaceQuotas:
        return self._namespaces.get(namespace, self._default)

    def of_topic(self, name: TopicName) -> NamespaceQuotas:
        """Return the limits of a topic: those of its namespace, with those that the topic has of its own."""
        found = self.of_namespace(name.namespace_name)
        own = self._of_topics.get(name.namespace_name, {})
        policies = own.get(topic_key(name.topic if name.is_segment else name)) if own else None
        return found if policies is None else topic_quotas(found, policies)

    def of_tenant(self, tenant: str) -> TenantQuotas:
        return self._tenants.get(tenant, NO_TENANT_QUOTAS)

    async def start(self) -> None:
        """Read all quotas and follow their changes; `follow` has to run from then on."""
        store = self._records.store
        self._undo = [
            store.watch(root, self._record_changed)
            for root in (records.TENANTS, records.NAMESPACES, CONFIGURATION)
        ]
        await self._load_all()

    def stop(self) -> None:
        for undo in self._undo:
            undo()

    async def follow(self) -> None:
        """Read changed records again, for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            changed, self._changed = self._changed, {}
            for root, name in changed:
                try:
                    await self._load(root, name)
                except AnabranchError as error:
                    _logger.warning("the quotas of %s cannot be read: %s", name or "all tenants", error)
                    asyncio.get_running_loop().call_later(RETRY_S, self._note, root, name)

    def refuse(
        self, policy: str, tenant: str, text: str, kind: type[AnabranchError] = LimitExceededError
    ) -> NoReturn:
        """Count a refusal, log it now and then, and raise it."""
        self.refusals[policy, tenant] += 1
        self._warnings.warning("refused: %s", text)
        raise kind(text)

    def topic_limits(self, name: TopicName) -> list[TopicLimit]:
        """Return the limits that a new topic has to keep."""
        namespace = name.namespace_name
        limits = [
            TopicLimit(
                "maxTopicsPerNamespace", self.of_namespace(namespace).max_topics_per_namespace, namespace
            ),
            TopicLimit("maxTopics", self.of_tenant(name.tenant).topics),
        ]
        return [limit for limit in limits if limit.most]

    def check_subscriptions(self, name: TopicName, known: int) -> None:
        """Raise LimitExceededError if a topic with so many subscriptions may not get one more."""
        most = self.of_topic(name).max_subscriptions_per_topic
        if most and known >= most:
            text = f"{name} has {known} subscriptions: maxSubscriptionsPerTopic={most}"
            self.refuse("maxSubscriptionsPerTopic", name.tenant, text)

    def _record_changed(self, path: str) -> None:
        root, *parts = path.removeprefix("/").split("/")
        name = "/".join(map(decode_part, parts))
        complete = len(parts) == (1 if f"/{root}" == records.TENANTS else 2)
        self._note(*(f"/{root}", name) if complete else ("", ""))

    def _note(self, root: str, name: str) -> None:
        self._changed[root, name] = None
        self._news.set()

    async def _load(self, root: str, name: str) -> None:
        if root == records.TENANTS:
            await self._load_tenant(name)
        elif root == records.NAMESPACES:
            await self._load_namespace(name)
        else:
            await self._load_all()

    async def _load_settings(self) -> None:
        values = await ConfigurationStore(self._records.store).load()
        try:
            config = with_values(self._given, values)
        except InvalidConfigurationError as error:
            # The record fitted the configuration with which brokers ran when it was written.
            _logger.warning("the settings that were changed while brokers ran do not count: %s", error)
            config = self._given
        if config != self.config:
            self.config, self._default = config, config.namespace_quotas()
            self.policies.set_default(config)
            self.throttles.all_changed()

    async def _load_all(self) -> None:
        await self._load_settings()
        tenants = {
            parts[0]: tenant_quotas(records.decode(TenantRecord, value).quotas)
            async for parts, value in self._records.walk(records.TENANTS)
        }
        for tenant in sorted({*tenants, *self._tenants}):
            self._set_tenant(tenant, tenants.get(tenant, NO_TENANT_QUOTAS))
        namespaces = {
            "/".join(parts): records.decode(NamespaceRecord, value).policies
            async for parts, value in self._records.walk(records.NAMESPACES)
        }
        for namespace in sorted({*namespaces, *self._namespaces, *self._of_topics}):
            self._set_namespace(namespace, namespaces.get(namespace, {}))

    async def _load_tenant(self, tenant: str) -> None:
        record = await self._records.read(TenantRecord, records.tenant_path(tenant))
        self._set_tenant(tenant, NO_TENANT_QUOTAS if record is None else tenant_quotas(record.quotas))

    async def _load_namespace(self, namespace: str) -> None:
        path = records.namespace_path(records.NAMESPACES, namespace)
        record = await self._records.read(NamespaceRecord, path)
        self._set_namespace(namespace, {} if record is None else record.policies)

    def _set_tenant(self, tenant: str, quotas: TenantQuotas) -> None:
        if quotas != self.of_tenant(tenant):
            self._tenants[tenant] = quotas
            if quotas == NO_TENANT_QUOTAS:
                del self._tenants[tenant]
            self.throttles.tenant_changed(tenant)

    def _set_namespace(self, namespace: str, policies: Mapping[str, Any]) -> None:
        quotas = namespace_quotas(policies, self._default, self.config.cluster)
        own = topic_policies(policies)
        before = self.of_namespace(namespace), self._of_topics.get(namespace, {})
        if (quotas, own) != before:
            self._namespaces[namespace], self._of_topics[namespace] = quotas, own
            if quotas == self._default:
                del self._namespaces[namespace]
            if not own:
                del self._of_topics[namespace]
            self.throttles.namespace_changed(namespace)
        self.policies.set(namespace, policies)
