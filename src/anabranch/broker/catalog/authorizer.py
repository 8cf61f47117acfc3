"""Checks rights at the doors of a broker: against grants in memory, which metadata watches keep fresh.

Both doors use it: the commands of a connection and the admin calls. A right that cannot be found out is
refused. This module must not know which command or call needs which right; `rights.table` does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from anabranch.config.authorization import split_roles
from anabranch.config.broker import BrokerConfig
from anabranch.errors import NotFoundError
from anabranch.metadata import records
from anabranch.metadata.namespaces import NamespaceStore
from anabranch.model.names import decode_part
from anabranch.rights.callers import Caller
from anabranch.rights.decide import RightsDecision, RightsRules, allowed
from anabranch.rights.grants import NO_GRANTS, NO_NAMESPACE_GRANTS, Grants, NamespaceGrants, grants_of
from anabranch.rights.needs import MissingRightError, Need

KEPT_MAX: Final = 10_000
"""Tenants, and namespaces, whose grants are kept in memory, missing ones too."""

Changed = Callable[[str], None]
"""Gets the tenant, or `tenant/namespace`, whose grants may have changed; empty for any."""


class GrantCache:
    """The admins of tenants and the grants of namespaces; an absent record has none."""

    def __init__(self, namespaces: NamespaceStore) -> None:
        self._namespaces = namespaces
        self._admins: dict[str, frozenset[str]] = {}
        self._grants: dict[str, NamespaceGrants] = {}
        self.changes = 0
        """Rises when a tenant or namespace has changed."""
        self._watchers: dict[Changed, None] = {}
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Follow the changes of all brokers from now on."""
        watch = self._namespaces.store.watch
        roots = (records.TENANTS, records.NAMESPACES)
        self._undo = [watch(root, partial(self._changed, root)) for root in roots]

    def stop(self) -> None:
        for undo in self._undo:
            undo()

    def watch(self, changed: Changed) -> Callable[[], None]:
        """Call `changed` after each change of grants; returns the undo."""
        self._watchers[changed] = None

        def undo() -> None:
            self._watchers.pop(changed, None)

        return undo

    def known(self, need: Need) -> Grants | None:
        """Return the grants for a need, if they are in memory."""
        admins = self._admins.get(need.tenant) if need.tenant else frozenset()
        grants = self._grants.get(need.namespace_name) if need.namespace else NO_NAMESPACE_GRANTS
        return None if admins is None or grants is None else Grants(admins, grants)

    async def load(self, need: Need) -> Grants:
        """Read the grants for a need, and keep them unless they changed meanwhile."""
        changes = self.changes
        grants = NO_NAMESPACE_GRANTS
        admins = await self._load_admins(need.tenant) if need.tenant else frozenset()
        if need.namespace:
            grants = await self._load_grants(need.namespace_name)
        if changes == self.changes and self._undo:
            _keep(self._admins, need.tenant, admins)
            if need.namespace:
                _keep(self._grants, need.namespace_name, grants)
        return Grants(admins, grants)

    async def _load_admins(self, tenant: str) -> frozenset[str]:
        try:
            return frozenset((await self._namespaces.load_tenant(tenant)).admin_roles)
        except NotFoundError:
            return frozenset()

    async def _load_grants(self, namespace: str) -> NamespaceGrants:
        try:
            return grants_of(namespace, (await self._namespaces.load_namespace(namespace)).policies)
        except NotFoundError:
            return NO_NAMESPACE_GRANTS

    def _changed(self, root: str, path: str) -> None:
        self.changes += 1
        name = "/".join(map(decode_part, path.removeprefix(root).strip("/").split("/")))
        if name:
            (self._admins if root == records.TENANTS else self._grants).pop(name, None)
        else:
            # Some changes were missed.
            self._admins.clear()
            self._grants.clear()
        for changed in list(self._watchers):
            changed(name)


def _keep(kept: dict[str, Any], name: str, value: object) -> None:
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]


class Authorizer:
    """Admits callers that have the rights they need, and refuses all others."""

    def __init__(self, namespaces: NamespaceStore, config: BrokerConfig) -> None:
        self.enabled = config.authorization
        self.rules = RightsRules(
            superusers=split_roles(config.superuser_roles),
            proxies=split_roles(config.proxy_roles),
            wildcards=config.role_wildcards,
        )
        self.grants = GrantCache(namespaces)

    def start(self) -> None:
        if self.enabled:
            self.grants.start()

    def stop(self) -> None:
        self.grants.stop()

    def admit(self, caller: Caller, needs: Sequence[Need]) -> Coroutine[Any, Any, None] | None:
        """Return if the caller has all rights; MissingRightError if it lacks one.

        Returns a coroutine that does the same if grants have to be read from the metadata first.
        """
        if not self.enabled:
            return None
        for at, need in enumerate(needs):
            decision = self.decide_now(caller, need)
            if decision is None:
                return self._admit_later(caller, needs[at:])
            self._require(need, decision)
        return None

    def decide_now(self, caller: Caller, need: Need) -> RightsDecision | None:
        """Decide with the grants in memory; None if those that matter are not there."""
        # Most superusers need no grants, and a right that holds without grants holds with them.
        decision = allowed(caller, need, NO_GRANTS, self.rules)
        if decision.allowed or not need.tenant:
            return decision
        known = self.grants.known(need)
        return None if known is None else allowed(caller, need, known, self.rules)

    async def decide(self, caller: Caller, need: Need) -> RightsDecision:
        """Decide, after reading the grants if they are not in memory."""
        if not self.enabled:
            return RightsDecision(True, "authorisation is off")
        decision = self.decide_now(caller, need)
        if decision is None:
            decision = allowed(caller, need, await self.grants.load(need), self.rules)
        return decision

    async def _admit_later(self, caller: Caller, needs: Sequence[Need]) -> None:
        seen = None
        while seen != self.grants.changes:
            # Grants that change while others are read may take a right away that was found before.
            seen = self.grants.changes
            for need in needs:
                self._require(need, await self.decide(caller, need))

    def _require(self, need: Need, decision: RightsDecision) -> None:
        if not decision.allowed:
            raise MissingRightError(
                f"{need.resource} needs {need.right.value}", need.resource, decision.reason
            )
