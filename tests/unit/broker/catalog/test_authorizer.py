"""The grants in memory: fresh, bounded, and never kept from a time before a change."""

from __future__ import annotations

import pytest

from anabranch.broker.catalog import authorizer
from anabranch.broker.catalog.authorizer import GrantCache
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.namespaces import NamespaceStore
from anabranch.metadata.records import NamespaceRecord, TenantRecord, encode
from anabranch.metadata.store import Stored
from anabranch.rights.grants import NO_GRANTS
from anabranch.rights.needs import Need, Right
from tests.harness.wire import settle

NEED = Need(Right.USE_NAMESPACE, "shop", "prod")
GRANTED = {"auth_policies": {"namespace_auth": {"app": ["produce"]}}}


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def namespaces(store: MemoryStore) -> NamespaceStore:
    return NamespaceStore(store)


@pytest.fixture
async def cache(namespaces: NamespaceStore) -> GrantCache:
    made = GrantCache(namespaces)
    made.start()
    return made


async def test_missing_tenants_and_namespaces_have_no_grants(
    cache: GrantCache, namespaces: NamespaceStore
) -> None:
    assert cache.known(NEED) is None
    assert await cache.load(NEED) == NO_GRANTS == cache.known(NEED)
    await namespaces.create_tenant("shop", TenantRecord(admin_roles=("boss",)))
    await settle()
    assert cache.known(NEED) is None
    assert (await cache.load(NEED)).admins == {"boss"}


async def test_a_change_drops_the_grants_of_its_namespace_and_no_others(
    cache: GrantCache, namespaces: NamespaceStore
) -> None:
    other = Need(Right.USE_NAMESPACE, "shop", "test")
    await namespaces.create_tenant("shop", TenantRecord())
    await settle()
    changed: list[str] = []
    undo = cache.watch(changed.append)
    await cache.load(NEED)
    await cache.load(other)
    await namespaces.create_namespace("shop/prod", NamespaceRecord(policies=GRANTED))
    await settle()
    assert (cache.known(NEED), cache.known(other), changed) == (None, NO_GRANTS, ["shop/prod"])
    undo()
    await namespaces.create_namespace("shop/test", NamespaceRecord())
    await settle()
    assert changed == ["shop/prod"]


async def test_all_grants_are_dropped_when_changes_were_missed(cache: GrantCache, store: MemoryStore) -> None:
    await cache.load(NEED)
    store.watches.announce_gap()
    await settle()
    assert cache.known(NEED) is None


async def test_without_watches_no_grants_are_kept(namespaces: NamespaceStore) -> None:
    cache = GrantCache(namespaces)
    await cache.load(NEED)
    assert cache.known(NEED) is None


async def test_names_that_clients_invent_do_not_fill_the_memory(
    cache: GrantCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorizer, "KEPT_MAX", 3)
    needs = [Need(Right.LOOK_UP, f"tenant-{number}", "prod") for number in range(5)]
    for need in needs:
        await cache.load(need)
    assert [cache.known(need) is not None for need in needs] == [False, False, True, True, True]


async def test_a_record_that_cannot_be_read_is_no_grant(
    cache: GrantCache, store: MemoryStore, namespaces: NamespaceStore
) -> None:
    await namespaces.create_tenant("shop", TenantRecord())
    await store.put("/namespaces/shop/prod", encode(NamespaceRecord(policies={"auth_policies": "all"})))
    assert isinstance(await store.get("/namespaces/shop/prod"), Stored)
    assert await cache.load(NEED) == NO_GRANTS
