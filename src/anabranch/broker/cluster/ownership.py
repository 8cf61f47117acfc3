"""Which stores this broker serves: it claims those it should own and gives back those it should not.

Who should own a store is a pure function of the brokers that live. That a store is owned is proven by the
lock on its storage and published in the metadata store; a holder whose lease is over is ended before its
store is opened. Must not know connections, logs or what leading a topic means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Protocol

from anabranch.aio import Backoff
from anabranch.broker.cluster.directory import Directory
from anabranch.errors import AnabranchError, HeldError
from anabranch.metadata import records
from anabranch.metadata.records import BrokerRecord, StoreRecord
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.hashing import key_hash

_logger = logging.getLogger(__name__)

RETRIES = Backoff(0.05, 1.0, jitter=0.0)
FAREWELL_S = 12.0
"""How long a stop waits for the stores before it closes what is left of them."""


class Storages(Protocol):
    """The stores of this process, opened and closed as a whole."""

    @property
    def opened(self) -> Collection[int]: ...

    async def open(self, store: int, name: str = "", fence: str | None = None) -> None: ...

    async def checkpoint(self, store: int) -> None: ...

    async def close(self, store: int, *, hastily: bool = False) -> None: ...


StoreWork = Callable[[int], Awaitable[None]]


def desired_owner(store: int, brokers: Collection[int]) -> int | None:
    """Who of the living should own a store: the broker of its number, else always the same other one."""
    if store in brokers:
        return store
    return max(brokers, key=lambda broker: (key_hash(f"{store}/{broker}"), broker), default=None)


def holder_name(broker: BrokerRecord) -> str:
    """What a broker writes into the lock of a store."""
    return f"broker {broker.id}/{broker.generation}"


def lease_is_over(holder: str, brokers: Mapping[int, BrokerRecord]) -> bool:
    """Whether the holder of a lock is a broker that does not live any more; others are never judged."""
    return holder.startswith("broker ") and holder not in map(holder_name, brokers.values())


class Ownership:
    """Keeps the stores of one broker, one task for each store there is."""

    def __init__(
        self,
        directory: Directory,
        store: MetadataStore,
        storages: Storages,
        *,
        opened: StoreWork,
        closing: StoreWork,
        workers: int = 1,
        patience_s: float = 0.0,
    ) -> None:
        """`opened` is called when a store is served, `closing` before it is given back.

        Brokers 0 to `workers` - 1 are expected: after a start their stores are left to them for `patience_s`.
        """
        self._directory = directory
        self._store = store
        self._storages = storages
        self._tell_opened = opened
        self._tell_closing = closing
        self._workers = workers
        self._patience_s = patience_s
        self._me: BrokerRecord | None = None
        self._impatient_at = 0.0
        self._stopping = False
        self._served: set[int] = set()
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._registering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def served(self) -> frozenset[int]:
        """The stores that are open, published and told of."""
        return frozenset(self._served)

    async def start(self, me: BrokerRecord) -> None:
        """Register this broker and claim its own store; a broker without others claims all there are.

        Waits for a living owner to give the own store back. Raises when it cannot be opened. A broker with
        others tells of its stores later: what follows from that may need the others, and they this one.
        """
        loop = asyncio.get_running_loop()
        self._me = me
        self._impatient_at = loop.time() + self._patience_s
        await self._register()
        if self._workers > 1:
            await self._patiently(me.id)
        else:
            await self._settle(me.id)
            for number in sorted(self._directory.stores):
                await self._attempt(number)
        self._unwatch = self._directory.watch(self._look)
        self._timer = loop.call_at(self._impatient_at, self._look)
        self._look()

    async def stop(self) -> None:
        """Give every store back and leave the brokers that live. May be called at any stage of `start`."""
        self._stopping = True
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if self._registering is not None:
            self._registering.cancel()
        self._wake()
        keepers = set(self._keepers.values())
        if keepers:
            _, late = await asyncio.wait(keepers, timeout=FAREWELL_S)
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for number in list(self._storages.opened):
            try:
                await self._give_back(number)
            except (AnabranchError, OSError) as error:
                _logger.warning("store %d was not given back in order: %s", number, error)
        await self._unregister()

    # This broker among the living.

    async def _register(self) -> None:
        assert self._me is not None
        await self._store.put(records.broker_path(self._me.id), records.encode(self._me), ephemeral=True)
        await self._directory.look()

    async def _unregister(self) -> None:
        if self._me is None:
            return
        path = records.broker_path(self._me.id)
        try:
            found = await self._store.get(path)
            if found is not None and records.decode(BrokerRecord, found.value) == self._me:
                await self._store.delete(path, expected=found.version)
        except AnabranchError as error:
            _logger.warning("the broker's record stays until its lease is over: %s", error)

    async def _register_again(self) -> None:
        """The lease ran out though the process lives; what it holds nobody else has."""
        delays_s = RETRIES.delays()
        while not self._stopping and self._lapsed:
            _logger.warning("the lease of this broker was over; it registers again")
            try:
                await self._register()
            except AnabranchError as error:
                _logger.warning("this broker cannot register: %s", error)
            await asyncio.sleep(next(delays_s))

    @property
    def _lapsed(self) -> bool:
        assert self._me is not None
        found = self._directory.brokers.get(self._me.id)
        # One of a later start is this broker's successor; there is nothing left to register.
        return found is None or found.generation < self._me.generation

    # One task for each store.

    def _look(self) -> None:
        """Brokers or stores have changed: see to each store."""
        assert self._me is not None
        if self._stopping:
            return
        if self._lapsed and (self._registering is None or self._registering.done()):
            self._registering = asyncio.get_running_loop().create_task(
                self._register_again(), name="register again"
            )
        for number in sorted({*self._directory.stores, *range(self._workers), self._me.id}):
            if number not in self._keepers:
                self._changed[number] = asyncio.Event()
                self._keepers[number] = asyncio.get_running_loop().create_task(
                    self._keep(number), name=f"store {number}"
                )
        self._wake()

    def _wake(self) -> None:
        for changed in self._changed.values():
            changed.set()

    async def _keep(self, number: int) -> None:
        """Make true what should be true of a store whenever something has changed."""
        changed = self._changed[number]
        delay_s = RETRIES.initial
        while True:
            changed.clear()
            if await self._attempt(number):
                delay_s = RETRIES.initial
                if self._stopping:
                    return
                await changed.wait()
            else:
                try:
                    async with asyncio.timeout(delay_s):
                        await changed.wait()
                except TimeoutError:
                    delay_s = min(2 * delay_s, RETRIES.maximum)

    async def _attempt(self, number: int) -> bool:
        """Try once; False when it must be tried again."""
        try:
            await self._settle(number)
        except HeldError as error:
            _logger.info("store %d is not free yet, %s has it", number, error.holder)
        except (AnabranchError, OSError) as error:
            _logger.warning("store %d: %s: %s", number, type(error).__name__, error)
        except Exception:
            _logger.exception("store %d", number)
        else:
            return True
        return False

    async def _patiently(self, number: int) -> None:
        delays_s = RETRIES.delays()
        changed = asyncio.Event()
        undo = self._directory.watch(changed.set)
        try:
            while True:
                changed.clear()
                try:
                    return await self._hold(number)
                except HeldError as error:
                    _logger.info("store %d is not free yet, %s has it", number, error.holder)
                with suppress(TimeoutError):
                    async with asyncio.timeout(next(delays_s)):
                        await changed.wait()
        finally:
            undo()

    def _wants(self, number: int) -> bool:
        assert self._me is not None
        brokers = self._directory.brokers
        if self._stopping or desired_owner(number, {*brokers, self._me.id}) != self._me.id:
            return False
        expected = number < self._workers and number != self._me.id and number not in self._served
        return not expected or asyncio.get_running_loop().time() >= self._impatient_at

    async def _settle(self, number: int) -> None:
        if not self._wants(number):
            if number in self._storages.opened:
                await self._hand_over(number)
            elif self._is_mine(self._directory.stores.get(number)):
                await self._publish(number)
            return
        await self._hold(number)
        if number not in self._served:
            await self._tell_opened(number)
            self._served.add(number)

    async def _hold(self, number: int) -> None:
        if number not in self._storages.opened:
            await self._claim(number)
        await self._publish(number)

    async def _claim(self, number: int) -> None:
        assert self._me is not None
        name = holder_name(self._me)
        try:
            await self._storages.open(number, name)
        except HeldError as error:
            # A broker registers before it takes a lock, so that a look after a refusal shows every holder.
            await self._directory.look()
            if not lease_is_over(error.holder, self._directory.brokers):
                raise
            _logger.warning("store %d is taken from %s, whose lease is over", number, error.holder)
            await self._storages.open(number, name, fence=error.holder)
        _logger.info("store %d is open", number)

    async def _hand_over(self, number: int) -> None:
        """Give a store back to an owner that waits for it: nobody serves it between the two, so be quick."""
        if not self._stopping:
            await self._storages.checkpoint(number)
        if not self._wants(number):
            await self._give_back(number, hastily=not self._stopping)

    async def _give_back(self, number: int, *, hastily: bool = False) -> None:
        self._served.discard(number)
        try:
            await self._tell_closing(number)
        finally:
            await self._storages.close(number, hastily=hastily)
        _logger.info("store %d is closed", number)
        await self._publish(number)

    def _is_mine(self, record: StoreRecord | None) -> bool:
        assert self._me is not None
        return record is not None and (record.owner, record.generation) == (self._me.id, self._me.generation)

    async def _publish(self, number: int) -> None:
        """Say who owns the store: this broker if it is open here, nobody if this broker was said to."""
        assert self._me is not None
        path = records.store_path(number)
        found = await self._store.get(path)
        record = StoreRecord() if found is None else records.decode(StoreRecord, found.value)
        mine = self._is_mine(record)
        if mine == (number in self._storages.opened):
            return
        owner = None if mine else self._me.id
        term = record.term if mine else record.term + 1
        made = StoreRecord(owner=owner, generation=self._me.generation, term=term)
        await self._store.put(path, records.encode(made), expected=ABSENT if found is None else found.version)
        await self._directory.look()
