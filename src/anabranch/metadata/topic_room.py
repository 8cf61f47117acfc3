"""Room for new topics within the quotas of their namespace and tenant, exact over all processes.

A process that creates a topic first claims its place in one record of the tenant, by a compare-and-set. Each
claim and each end of a claim changes the version of the record. So a process that counted the topics and then
claims a place fails if another one created a topic meanwhile, and counts again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from anabranch.errors import MetadataError, VersionConflictError
from anabranch.metadata import records
from anabranch.metadata.namespaces import NamespaceStore
from anabranch.metadata.record_store import ATTEMPTS, RecordStore
from anabranch.metadata.records import ClassicTopicRecord, Record
from anabranch.metadata.store import ABSENT, Stored
from anabranch.model.names import TopicName, decode_part, encode_part

CLAIMS: Final = "/topic-claims"
_LISTED: Final = ((records.CLASSIC_TOPICS, "persistent"), (records.LIVE_TOPICS, "non-persistent"))
CLAIM_MS: Final = 60_000
"""The claim of a process that died is over after this time."""


class TopicLimit(NamedTuple):
    """The most topics of a tenant, or of one of its namespaces."""

    policy: str
    most: int
    namespace: str | None = None


class ClaimRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """The place of a topic, or of new partitions, that a process is creating."""

    count: int
    until_ms: int


Claims = dict[str, dict[str, ClaimRecord]]
"""By `tenant/namespace` and topic."""


class ClaimsRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """All claims of one tenant."""

    claims: Claims


class TopicRoom(RecordStore):
    """Admits new topics of all tenants."""

    def __init__(
        self,
        namespaces: NamespaceStore,
        wall_ms: Callable[[], int],
        limits: Callable[[TopicName], Sequence[TopicLimit]],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        """`refuse` gets the policy, the tenant and a reason, and raises."""
        super().__init__(namespaces.store)
        self._namespaces = namespaces
        self._wall_ms = wall_ms
        self._limits = limits
        self._refuse = refuse

    @asynccontextmanager
    async def claim(self, name: TopicName, count: int, *, grows: bool = False) -> AsyncIterator[None]:
        """Keep places for `count` more topics while the block creates them; raises what `refuse` raises.

        `grows`: the topic exists and gets more partitions.
        """
        limits = self._limits(name)
        key = f"{name}+" if grows else str(name)
        if not limits or not await self._take(name, key, count, limits):
            yield
            return
        try:
            yield
        finally:
            await self._end(name, key)

    async def _take(self, name: TopicName, key: str, count: int, limits: Sequence[TopicLimit]) -> bool:
        """Claim the places; False if the topic exists already and takes no further place."""
        for _ in range(ATTEMPTS):
            stored = await self.store.get(_path(name))
            known = [await self._topics_of(name.tenant, limit.namespace) for limit in limits]
            if any(_exists(key, topics) for topics in known):
                return False
            claims = self._living(stored)
            # Another process that creates the same topic needs the same place.
            claims.get(name.namespace_name, {}).pop(key, None)
            for limit, topics in zip(limits, known, strict=True):
                self._check(name, limit, count, len(topics) + _claimed(claims, limit.namespace, topics))
            claims.setdefault(name.namespace_name, {})[key] = ClaimRecord(
                count=count, until_ms=self._wall_ms() + CLAIM_MS
            )
            if await self._put(name, stored, claims):
                return True
        raise MetadataError(f"{_path(name)} lost {ATTEMPTS} races in a row to other writers; try again")

    def _check(self, name: TopicName, limit: TopicLimit, count: int, known: int) -> None:
        if known + count > limit.most:
            whose = f"namespace {limit.namespace}" if limit.namespace else f"tenant {name.tenant}"
            reason = f"{whose} has {known} topics: {limit.policy}={limit.most}"
            self._refuse(limit.policy, name.tenant, reason)

    async def _end(self, name: TopicName, key: str) -> None:
        for _ in range(ATTEMPTS):
            stored = await self.store.get(_path(name))
            claims = self._living(stored)
            claims.get(name.namespace_name, {}).pop(key, None)
            if await self._put(name, stored, claims):
                return

    async def _put(self, name: TopicName, stored: Stored | None, claims: Claims) -> bool:
        """Store the claims; False if another process changed them first."""
        version = ABSENT if stored is None else stored.version
        try:
            encoded = records.encode(ClaimsRecord(claims=claims))
            await self.store.put(_path(name), encoded, expected=version)
        except VersionConflictError:
            return False
        return True

    def _living(self, stored: Stored | None) -> Claims:
        if stored is None:
            return {}
        now_ms = self._wall_ms()
        found = records.decode(ClaimsRecord, stored.value).claims
        living = {
            namespace: {key: claim for key, claim in claims.items() if claim.until_ms > now_ms}
            for namespace, claims in found.items()
        }
        return {namespace: claims for namespace, claims in living.items() if claims}

    async def count(self, tenant: str, namespace: str | None = None) -> int:
        """The topics of a tenant, or of one namespace, as limits count them."""
        return len(await self._topics_of(tenant, namespace))

    async def _topics_of(self, tenant: str, namespace: str | None) -> set[str]:
        """The names of all topics, and of each partition of a classic or live topic."""
        wanted = [namespace] if namespace is not None else await self._namespaces.of_tenant(tenant)
        found: set[str] = set()
        for one in wanted:
            scalable = await self.store.children(records.namespace_path(records.TOPICS, one))
            found.update(f"topic://{one}/{decode_part(part)}" for part in scalable)
            for root, domain in _LISTED:
                async for parts, value in self.walk(records.namespace_path(root, one)):
                    record = records.decode(ClassicTopicRecord, value)
                    name = f"{domain}://{one}/{parts[0]}"
                    if not record.migrated:
                        found.update(f"{name}-partition-{index}" for index in range(record.partitions))
                        found.update(() if record.partitions else (name,))
        return found


def _claimed(claims: Claims, namespace: str | None, topics: Collection[str]) -> int:
    """The places that others claimed and have not filled yet."""
    wanted = claims.values() if namespace is None else [claims.get(namespace, {})]
    return sum(claim.count for found in wanted for key, claim in found.items() if not _exists(key, topics))


def _exists(key: str, topics: Collection[str]) -> bool:
    """Whether the topic exists, or the classic topic that becomes this scalable one."""
    twin = key.replace("topic://", "persistent://", 1)
    return any(name in topics or f"{name}-partition-0" in topics for name in (key, twin))


def _path(name: TopicName) -> str:
    return f"{CLAIMS}/{encode_part(name.tenant)}"
