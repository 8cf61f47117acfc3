"""One suite for the metadata port, run on every adapter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import pytest

from anabranch.errors import AlreadyClosedError, InvalidNameError, NotFoundError, VersionConflictError
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.sqlite.sqlite_store import SqliteStore
from anabranch.metadata.store import ABSENT, MetadataStore

STORES = os.environ.get("METADATA_STORES", "memory sqlite").split()
"""Adapters to test; `zookeeper` needs Java."""
SHORT_LEASE_S = {"zookeeper": 5.0}
"""kazoo needs time for a ping, also on a machine that stands still; others allow half a second."""
ATTEMPTS = 20_000
"""Looks, a millisecond apart, until a change that is under way has to be seen."""


@runtime_checkable
class Abandonable(Protocol):
    """A store that can stop like a killed process."""

    async def abandon(self) -> None: ...


class StoreProcesses(NamedTuple):
    """Several processes on one durable store; their leases outlast a test unless it says otherwise."""

    process: Callable[..., MetadataStore]
    crash: Callable[[MetadataStore], Awaitable[None]]
    short_lease_s: float


def adapters() -> list[object]:
    return [name if name == "memory" else pytest.param(name, marks=pytest.mark.real_time) for name in STORES]


@pytest.fixture(params=adapters())
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreProcesses]:
    made: list[MetadataStore] = []
    tree = MemoryTree()
    # Each test has a path of its own on the server that all tests share.
    path = (
        "" if request.param != "zookeeper" else f"{request.getfixturevalue('zookeeper').url}/{tmp_path.name}"
    )

    def process(lease_s: float = 60.0) -> MetadataStore:
        if request.param == "memory":
            made.append(MemoryStore(tree))
        elif request.param == "zookeeper":
            # kazoo is an extra, and most runs do without it.
            from anabranch.metadata.zookeeper.zookeeper_store import ZookeeperOptions, ZookeeperStore

            made.append(ZookeeperStore(path, ZookeeperOptions(session_s=lease_s)))
        else:
            made.append(SqliteStore(tmp_path / "metadata.db", lease_s=lease_s, poll_s=0.002))
        return made[-1]

    async def crash(store: MetadataStore) -> None:
        if isinstance(store, MemoryStore):
            store.expire()
        else:
            assert isinstance(store, Abandonable)
            await store.abandon()

    yield StoreProcesses(process, crash, SHORT_LEASE_S.get(request.param, 0.5))
    for store in made:
        await store.close()


@pytest.fixture
def store(processes: StoreProcesses) -> MetadataStore:
    return processes.process()


async def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(ATTEMPTS):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("did not come true in time")


async def all_gone(store: MetadataStore, *paths: str) -> None:
    for _ in range(ATTEMPTS):
        if not any([await store.get(path) for path in paths]):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the values were not removed in time")


def watch(store: MetadataStore, prefix: str) -> list[str]:
    """Return a list that receives the paths of changes."""
    heard: list[str] = []
    store.watch(prefix, heard.append)
    return heard


async def test_an_absent_key_reads_as_none(store: MetadataStore) -> None:
    assert await store.get("/a") is None


async def test_all_processes_name_the_store_alike(
    request: pytest.FixtureRequest, processes: StoreProcesses
) -> None:
    first, second = processes.process(), processes.process()
    assert first.url == second.url
    scheme = {"memory": "memory:", "sqlite": "sqlite:/", "zookeeper": "zk://"}
    assert first.url.startswith(scheme[request.node.callspec.params["processes"]])


async def test_versions_start_at_zero_and_grow_by_one(store: MetadataStore) -> None:
    assert await store.put("/a", b"one") == 0
    assert await store.put("/a", b"two") == 1
    assert await store.get("/a") == (b"two", 1)


async def test_a_recreated_key_starts_at_zero_again(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    await store.put("/a", b"two")
    await store.delete("/a")
    assert await store.put("/a", b"three", expected=ABSENT) == 0


async def test_put_with_another_version_is_refused_and_changes_nothing(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    for wrong in (ABSENT, 1, 7):
        with pytest.raises(VersionConflictError):
            await store.put("/a", b"two", expected=wrong)
    assert await store.get("/a") == (b"one", 0)
    assert await store.put("/a", b"two", expected=0) == 1


async def test_put_on_an_absent_key_needs_absent(store: MetadataStore) -> None:
    with pytest.raises(VersionConflictError):
        await store.put("/a", b"one", expected=0)
    assert await store.put("/a", b"", expected=ABSENT) == 0
    assert await store.get("/a") == (b"", 0)


async def test_delete_checks_existence_and_version(store: MetadataStore) -> None:
    with pytest.raises(NotFoundError):
        await store.delete("/a")
    with pytest.raises(NotFoundError):
        await store.delete("/a", expected=0)
    await store.put("/a", b"one")
    with pytest.raises(VersionConflictError):
        await store.delete("/a", expected=1)
    await store.delete("/a", expected=0)
    assert await store.get("/a") is None


async def test_children_are_sorted_direct_and_include_bare_ancestors(store: MetadataStore) -> None:
    for path in ("/t/b", "/t/a/x/deep", "/t/a-b", "/t/a", "/t/a/y", "/t/a0", "/ta", "/t/é%2F"):
        await store.put(path, b"")
    assert await store.children("/t") == ["a", "a-b", "a0", "b", "é%2F"]
    assert await store.children("/t/a") == ["x", "y"]
    assert await store.children("/t/a/x") == ["deep"]
    assert await store.children("/none") == []
    assert await store.children("/") == ["t", "ta"]


async def test_delete_leaves_descendants(store: MetadataStore) -> None:
    await store.put("/t/a", b"")
    await store.put("/t/a/x", b"")
    await store.delete("/t/a")
    assert await store.children("/t") == ["a"]


async def test_sequences_count_up_apart_from_values(processes: StoreProcesses) -> None:
    first, second = processes.process(), processes.process()
    assert [await first.increment("/s") for _ in range(3)] == [0, 1, 2]
    assert await first.get("/s") is None
    assert await first.children("/") == []
    await first.put("/s", b"x")
    await first.delete("/s")
    assert await second.increment("/s") == 3
    assert await first.increment("/other") == 0
    await processes.crash(first)
    assert await second.increment("/s") == 4


async def test_of_many_concurrent_puts_with_one_version_exactly_one_wins(processes: StoreProcesses) -> None:
    stores = [processes.process() for _ in range(3)]
    await stores[0].put("/a", b"start")

    async def attempt(store: MetadataStore, value: bytes) -> bool:
        try:
            await store.put("/a", value, expected=0)
        except VersionConflictError:
            return False
        return True

    values = [f"{n}".encode() for n in range(30)]
    won = await asyncio.gather(*(attempt(stores[n % 3], value) for n, value in enumerate(values)))
    assert sum(won) == 1
    assert await stores[1].get("/a") == (values[won.index(True)], 1)


async def test_concurrent_increments_give_each_number_once(processes: StoreProcesses) -> None:
    stores = [processes.process() for _ in range(3)]
    numbers = await asyncio.gather(*(stores[n % 3].increment("/s") for n in range(60)))
    assert sorted(numbers) == list(range(60))


@pytest.mark.parametrize("path", ["", "a", "/a/", "/a//b", "/a\x00"])
async def test_a_malformed_key_is_refused(store: MetadataStore, path: str) -> None:
    with pytest.raises(InvalidNameError):
        await store.put(path, b"")
    with pytest.raises(InvalidNameError):
        await store.get(path)


async def test_a_watch_hears_of_changes_at_and_below_its_prefix(store: MetadataStore) -> None:
    heard = watch(store, "/t")
    for path in ("/t", "/t/a", "/t/a/b", "/ta", "/u"):
        await store.put(path, b"")
    await store.delete("/t/a")
    await eventually(lambda: heard.count("/t/a") == 2 or (heard.count("/t/a") == 1 and len(heard) == 3))
    assert set(heard) == {"/t", "/t/a", "/t/a/b"}


async def test_the_root_watch_hears_everything(store: MetadataStore) -> None:
    heard = watch(store, "/")
    await store.put("/t/a", b"")
    await eventually(lambda: heard == ["/t/a"])


async def test_an_undone_watch_hears_nothing_more(store: MetadataStore) -> None:
    heard: list[str] = []
    undo = store.watch("/t", heard.append)
    later = watch(store, "/t")
    undo()
    undo()
    await store.put("/t/a", b"")
    await eventually(lambda: later == ["/t/a"])
    assert heard == []


async def test_a_refused_put_notifies_no_watcher(store: MetadataStore) -> None:
    heard = watch(store, "/t")
    with pytest.raises(VersionConflictError):
        await store.put("/t/a", b"", expected=5)
    await store.put("/t/b", b"")
    await eventually(lambda: "/t/b" in heard)
    assert heard == ["/t/b"]


async def test_a_failing_watcher_harms_no_other(store: MetadataStore) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail(_: object) -> None:
        raise RuntimeError("broken watcher")

    store.watch("/t", fail)
    heard = watch(store, "/t")
    await store.put("/t/a", b"")
    await eventually(lambda: heard == ["/t/a"])
    assert len(reported) == 1


async def test_watches_cross_processes(processes: StoreProcesses) -> None:
    writer, reader = processes.process(), processes.process()
    await reader.get("/t")
    heard = watch(reader, "/t")
    await writer.put("/t/a", b"1")
    await eventually(lambda: "/t/a" in heard)
    assert await reader.get("/t/a") == (b"1", 0)
    heard.clear()
    await writer.delete("/t/a")
    await eventually(lambda: "/t/a" in heard)


async def test_ephemeral_values_go_with_a_closed_session_and_tell_watchers(processes: StoreProcesses) -> None:
    leaver, stayer = processes.process(), processes.process()
    await leaver.put("/lock/a", b"leaver", expected=ABSENT, ephemeral=True)
    await leaver.put("/kept", b"")
    await stayer.put("/lock/b", b"stayer", ephemeral=True)
    heard = watch(stayer, "/lock")
    with pytest.raises(VersionConflictError):
        await stayer.put("/lock/a", b"stayer", expected=ABSENT, ephemeral=True)
    await leaver.close()
    await all_gone(stayer, "/lock/a")
    await eventually(lambda: "/lock/a" in heard)
    assert await stayer.put("/lock/a", b"stayer", expected=ABSENT, ephemeral=True) == 0
    assert await stayer.get("/lock/b") == (b"stayer", 0)
    assert await stayer.get("/kept") is not None


async def test_ephemeral_values_of_a_crashed_process_go_after_its_lease(processes: StoreProcesses) -> None:
    lease_s = processes.short_lease_s
    victim, stayer, judge = (processes.process(lease_s) for _ in range(3))
    await victim.put("/lock/a", b"victim", ephemeral=True)
    await stayer.put("/lock/b", b"stayer", ephemeral=True)
    await processes.crash(victim)
    await all_gone(judge, "/lock/a")
    await asyncio.sleep(1.2 * lease_s)
    assert await judge.get("/lock/b") == (b"stayer", 0), "the lease of a living session is renewed"


async def test_a_lasting_put_makes_an_ephemeral_value_last(processes: StoreProcesses) -> None:
    leaver, stayer = processes.process(), processes.process()
    await leaver.put("/a", b"1", ephemeral=True)
    await leaver.put("/a", b"2")
    await leaver.close()
    assert await stayer.get("/a") == (b"2", 1)


async def test_an_ephemeral_value_belongs_to_its_last_writer(processes: StoreProcesses) -> None:
    first, second, stayer = processes.process(), processes.process(), processes.process()
    await first.put("/lasting", b"1")
    await first.put("/taken", b"1", ephemeral=True)
    for path in ("/lasting", "/taken"):
        await second.put(path, b"2", expected=0, ephemeral=True)
    await first.close()
    for path in ("/lasting", "/taken"):
        assert await stayer.get(path) == (b"2", 1)
    await second.close()
    await all_gone(stayer, "/lasting", "/taken")


async def test_a_closed_store_refuses_calls_and_hears_nothing_more(processes: StoreProcesses) -> None:
    store, other = processes.process(), processes.process()
    heard = watch(store, "/")
    await store.put("/a", b"1")
    await store.close()
    await store.close()
    heard.clear()
    for call in (
        store.get("/a"),
        store.put("/a", b"2"),
        store.delete("/a"),
        store.children("/"),
        store.increment("/s"),
    ):
        with pytest.raises(AlreadyClosedError):
            await call
    with pytest.raises(AlreadyClosedError):
        store.watch("/", heard.append)
    assert await other.get("/a") == (b"1", 0)
    await other.put("/a", b"3")
    await asyncio.sleep(0.05)
    assert heard == []


async def test_a_value_read_stays_as_it_was(store: MetadataStore) -> None:
    source = bytearray(b"one")
    await store.put("/a", bytes(source))
    before = await store.get("/a")
    await store.put("/a", b"two")
    assert before == (b"one", 0)


async def test_values_below_a_key_are_read_page_by_page(store: MetadataStore) -> None:
    keys = ["/a/x", "/a/x-y", "/a/x/deep", "/a/y", "/a0", "/b/z"]
    for key in keys:
        await store.put(key, key.encode())
    below = [(key, (key.encode(), 0)) for key in ("/a/x", "/a/x-y", "/a/x/deep", "/a/y")]
    assert await store.page("/a", "", 10) == below
    assert await store.page("/a", "", 2) == below[:2]
    assert await store.page("/a", "/a/x-y", 2) == below[2:]
    assert await store.page("/a", "/a/y", 2) == []
    assert await store.page("/nothing", "", 2) == []


async def test_children_of_a_key_with_very_many_descendants_are_all_named(store: MetadataStore) -> None:
    names = [f"n{number:04d}" for number in range(600)]
    for name in names:
        await store.put(f"/a/{name}", b"")
    for number in range(600):
        await store.put(f"/a/n0300/d{number}", b"")
    await store.put("/a/n0300-x", b"")
    assert await store.children("/a") == sorted([*names, "n0300-x"])
