"""The store beyond its port: sizes, credentials, and a ZooKeeper that is paused or killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from anabranch.errors import LimitExceededError, MetadataError, VersionConflictError
from anabranch.metadata.store import ABSENT
from anabranch.metadata.zookeeper.zookeeper_store import VALUE_BYTES_MAX, ZookeeperOptions, ZookeeperStore
from simulation.harness.pulsar.server_process import READY_S
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.pulsar import find_jars

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(400)]

T = TypeVar("T")

Stores = Callable[..., ZookeeperStore]
SESSION_S = 4.0
CALL_S = 2.0


class Losses:
    """Counts lost sessions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
async def stores(zookeeper: ZookeeperServer, tmp_path: Path) -> AsyncIterator[Stores]:
    """Make stores on the shared server; each test has its own path."""
    made: list[ZookeeperStore] = []

    def make(url: str = f"{zookeeper.url}/{tmp_path.name}", **options: object) -> ZookeeperStore:
        made.append(ZookeeperStore(url, ZookeeperOptions(**options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ZookeeperServer]:
    """A ZooKeeper that the test may pause and kill."""
    server = ZookeeperServer(find_jars(), tmp_path / "own")
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds. On a busy machine, a JVM takes more than a minute to start."""
    until_s = time.monotonic() + READY_S
    while not holds():
        assert time.monotonic() < until_s, "did not come true in time"
        await asyncio.sleep(0.01)


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to a question that is repeated until the server answers in time."""
    while True:
        with suppress(MetadataError):
            return await ask()


async def test_the_largest_value_is_stored_and_a_larger_one_refused(stores: Stores) -> None:
    store = stores()
    assert await store.put("/a", b"x" * VALUE_BYTES_MAX) == 0
    found = await store.get("/a")
    assert found is not None
    assert len(found.value) == VALUE_BYTES_MAX
    with pytest.raises(LimitExceededError, match="/a: ZooKeeper keeps 900000 bytes, not 900001"):
        await store.put("/a", b"x" * (VALUE_BYTES_MAX + 1))
    assert store.is_connected


async def test_names_that_zookeeper_refuses_are_keys_like_others(stores: Stores) -> None:
    store = stores()
    for name in ("..", ".", "~", "\x01", "\U0001f600", "zookeeper"):
        await store.put(f"/t/{name}/x", b"")
        await store.put(f"/t/{name}", name.encode())
        assert await store.get(f"/t/{name}") == (name.encode(), 0)
    assert await store.children("/t") == sorted(["..", ".", "~", "\x01", "\U0001f600", "zookeeper"])


async def test_a_key_that_changes_its_session_keeps_counting(stores: Stores) -> None:
    first, second = stores(), stores()
    for number in range(10):
        await first.put("/a", b"%d" % number, ephemeral=True)
    assert await second.put("/a", b"second", expected=9, ephemeral=True) == 10
    assert await first.put("/a", b"lasting", expected=10) == 11
    assert await second.get("/a") == (b"lasting", 11)


async def test_of_many_sessions_that_take_a_key_over_exactly_one_wins(stores: Stores) -> None:
    takers = [stores() for _ in range(5)]

    async def take(taker: ZookeeperStore, number: int, key: str) -> bool:
        try:
            assert await taker.put(key, b"%d" % number, expected=0, ephemeral=True) == 1
        except VersionConflictError:
            return False
        return True

    for key in (f"/{number}" for number in range(20)):
        await takers[0].put(key, b"lasting")
        # All are connected, so that they read the same version before one of them writes.
        await asyncio.gather(*(taker.get(key) for taker in takers))
        won = await asyncio.gather(*(take(taker, number, key) for number, taker in enumerate(takers)))
        assert sum(won) == 1
        assert await takers[1].get(key) == (b"%d" % won.index(True), 1)


async def test_the_end_of_a_session_leaves_no_name_behind(stores: Stores) -> None:
    leaver, stayer = stores(), stores()
    await leaver.put("/t/a/b/c", b"", ephemeral=True)
    assert await stayer.children("/t") == ["a"]
    await leaver.close()
    assert await stayer.children("/t") == []
    assert await stayer.children("/") == []
    assert await stayer.page("/t", "", 10) == []


async def test_only_sessions_with_the_credentials_read_and_write(stores: Stores) -> None:
    owner, stranger, other = stores(credentials="a:1"), stores(), stores(credentials="a:2")
    await owner.put("/secret/a", b"x")
    await owner.increment("/s")
    for store in (stranger, other):
        for call in (store.get("/secret/a"), store.put("/secret/a", b"y"), store.increment("/s")):
            with pytest.raises(MetadataError, match="NoAuth"):
                await call
    assert await stores(credentials="a:1").get("/secret/a") == (b"x", 0)


async def test_calls_without_a_server_fail_in_time_and_succeed_once_it_is_there(own: ZookeeperServer) -> None:
    own.kill()
    store = ZookeeperStore(own.url, ZookeeperOptions(session_s=SESSION_S, call_s=CALL_S))
    began_s = time.monotonic()
    with pytest.raises(MetadataError, match="did not answer within 2 s") as failed:
        await store.get("/a")
    assert failed.value.retryable
    assert time.monotonic() - began_s >= CALL_S
    assert store.session_left_s() <= 0
    own.launch()
    await until(lambda: store.is_connected)
    assert await insist(lambda: store.get("/a")) is None
    await store.close()


async def test_a_restarted_server_continues_the_session_and_reports_a_gap(own: ZookeeperServer) -> None:
    losses = Losses()
    store = ZookeeperStore(own.url, ZookeeperOptions(session_s=15, call_s=CALL_S), lost=losses)
    other = ZookeeperStore(own.url, ZookeeperOptions(session_s=15))
    await store.put("/lock", b"mine", expected=ABSENT, ephemeral=True)
    heard: list[str] = []
    store.watch("/t", heard.append)
    own.kill()
    await until(lambda: not store.is_connected)
    assert store.session_left_s() <= 0
    assert heard == []
    own.launch()
    await until(lambda: store.is_connected)
    await until(lambda: "/t" in heard)
    assert await insist(lambda: store.get("/lock")) == (b"mine", 0)
    await insist(lambda: other.put("/t/a", b""))
    await until(lambda: "/t/a" in heard)
    assert losses.count == 0
    await asyncio.gather(store.close(), other.close())


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_paused_server_ends_the_session_and_a_new_one_starts(own: ZookeeperServer) -> None:
    losses = Losses()
    store = ZookeeperStore(own.url, ZookeeperOptions(session_s=SESSION_S, call_s=CALL_S), lost=losses)
    await store.put("/lock", b"mine", ephemeral=True)
    heard: list[str] = []
    store.watch("/lock", heard.append)
    while losses.count == 0:
        # A server that goes on may hear its client before it ends the session that has run out.
        await until(lambda: store.session_left_s() > 0)
        await pause_beyond_the_session(own, store)
        assert losses.count == 0, "the loss is not known yet"
        own.resume()
        await until(lambda: store.is_connected)
    await until(lambda: "/lock" in heard)
    assert await insist(lambda: store.get("/lock")) is None
    await insist(lambda: store.put("/lock", b"again", ephemeral=True))
    assert losses.count == 1
    assert store.session_left_s() > 0
    await store.close()


async def pause_beyond_the_session(server: ZookeeperServer, store: ZookeeperStore) -> None:
    """Pause the server for longer than the session, so that it ends the session once it resumes."""
    server.pause()
    stat = Path(f"/proc/{server.pid}/stat")
    await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    paused_s = time.monotonic()
    # Measured before the question, so the sum is at most the time at which the store stops.
    assert time.monotonic() + store.session_left_s() <= paused_s + SESSION_S, "the server may end it sooner"
    with pytest.raises(MetadataError):
        await store.put("/other", b"")
    await until(lambda: store.session_left_s() <= 0)
    await asyncio.sleep(9 - (time.monotonic() - paused_s))


async def test_a_write_of_unknown_outcome_is_settled_by_reading_again(own: ZookeeperServer) -> None:
    store = ZookeeperStore(own.url, ZookeeperOptions(session_s=15, call_s=CALL_S))
    await store.put("/a", b"0")
    own.pause()
    with pytest.raises(MetadataError) as failed:
        await store.put("/a", b"1", expected=0)
    assert failed.value.retryable
    own.resume()
    found = await insist(lambda: store.get("/a"))
    assert found is not None
    assert found in ((b"0", 0), (b"1", 1))
    patient = ZookeeperStore(own.url)
    assert await patient.put("/a", b"2", expected=found.version) == found.version + 1
    with pytest.raises(VersionConflictError):
        await patient.put("/a", b"3", expected=found.version)
    await asyncio.gather(store.close(), patient.close())
