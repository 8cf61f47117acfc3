"""The stores that this broker owns: it claims those it should own and gives up those it should not.

A thin shell around `decide/store_ownership.py`: for each store one task looks at the state and carries out
the next step. The lock on a storage proves that its store is owned, and a record in the metadata store
publishes it. A lock holder whose lease is over is killed before its store is opened. This module must not
know connections, logs or what leading a topic means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from anabranch.broker.cluster.broker_lease import RETRIES, BrokerLease
from anabranch.broker.cluster.decide.store_ownership import (
    OUTCOMES,
    StoreAim,
    StoreState,
    StoreStep,
    aim_for,
    holder_name,
    lease_is_over,
    next_step,
)
from anabranch.broker.cluster.directory import Directory
from anabranch.errors import AnabranchError, HeldError, MissingDataError
from anabranch.metadata import records
from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import StoreRecord
from anabranch.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)

STOP_S: Final = 12.0
"""How long a stop waits until all stores are given up in order. The rest are then closed one by one."""


class Storages(Protocol):
    """The stores of this process, each opened and closed as a whole."""

    async def open(self, store: int, name: str = "", fence: str | None = None) -> int:
        """Returns the identity of the store; 0 if it has none."""

    async def checkpoint(self, store: int) -> None: ...

    async def close(self, store: int, *, hastily: bool = False) -> None: ...


StoreWork = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    opened: StoreWork
    """Called when a store is served by this broker."""
    closing: StoreWork
    """Called before a store is closed."""
    workers: int = 1
    """Brokers 0 to `workers` - 1 are expected to start."""
    patience_s: float = 0.0
    """How long after a start the stores of expected brokers are left to them; 0 if none is expected."""
    unexpected: bool = False
    """Whether brokers may run beside this one that `workers` does not count."""


class Ownership:
    """Owns the stores of one broker, with one task for each store of the cluster."""

    def __init__(
        self,
        lease: BrokerLease,
        directory: Directory,
        store: MetadataStore,
        storages: Storages,
        options: OwnershipOptions,
    ) -> None:
        self._lease = lease
        self._directory = directory
        self._records = RecordStore(store)
        self._storages = storages
        self._options = options
        self._impatient_at = 0.0
        self._stopping = False
        self._states: dict[int, StoreState] = {}
        self._ids: dict[int, int] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._cancel: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Register this broker and claim its own store; a broker without others claims all stores.

        Waits until a living owner gives this broker's own store up. Raises if the store cannot be opened. A
        broker with others announces its stores later: the announcement may need the other brokers, and they
        may need this one.
        """
        loop = asyncio.get_running_loop()
        self._impatient_at = loop.time() + self._options.patience_s
        await self._lease.register()
        if self._options.workers > 1 or self._options.unexpected:
            try:
                await self._claim_when_free(self._lease.me.id)
            except MissingDataError as error:
                # The other stores are served; a restored store is noticed by a later attempt.
                _logger.error("%s", error)
        else:
            await self._advance(self._lease.me.id)
            for number in sorted(self._directory.stores):
                await self._try_to_advance(number)
        timer = loop.call_at(self._impatient_at, self._look)
        self._cancel = [self._directory.watch(self._look), timer.cancel]
        self._look()

    async def stop(self) -> None:
        """Give up every store and unregister. May be called at any stage of `start`."""
        self._stopping = True
        for cancel in self._cancel:
            cancel()
        self._wake_keepers()
        keepers = set(self._keepers.values())
        if keepers:
            _, late = await asyncio.wait(keepers, timeout=STOP_S)
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for number in list(self._states):
            await self._try_to_advance(number)
        await self._lease.end()

    def _look(self) -> None:
        """Brokers or stores have changed: let the task of each store look at its aim again."""
        if self._stopping:
            return
        self._lease.renew_if_lapsed()
        for number in sorted({*self._directory.stores, *range(self._options.workers), self._lease.me.id}):
            if number not in self._keepers:
                self._changed[number] = asyncio.Event()
                self._keepers[number] = asyncio.get_running_loop().create_task(
                    self._keep(number), name=f"store {number}"
                )
        self._wake_keepers()

    def _wake_keepers(self) -> None:
        for changed in self._changed.values():
            changed.set()

    async def _keep(self, number: int) -> None:
        """Advance a store whenever brokers or stores have changed, and retry the steps that fail."""
        changed = self._changed[number]
        failures = 0
        while True:
            changed.clear()
            if await self._try_to_advance(number):
                failures = 0
                if self._stopping:
                    return
                await changed.wait()
            else:
                try:
                    async with asyncio.timeout(RETRIES.delay(failures)):
                        await changed.wait()
                except TimeoutError:
                    failures += 1

    async def _claim_when_free(self, number: int) -> None:
        """Open and publish a store as soon as its living owner has given it up."""
        delays_s = RETRIES.delays()
        changed = asyncio.Event()
        undo = self._directory.watch(changed.set)
        try:
            while self._state(number) is StoreState.UNOWNED:
                changed.clear()
                try:
                    await self._take(number, StoreStep.OPEN)
                except HeldError as error:
                    _logger.info("store %d is not free yet: %s holds it", number, error.holder)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(next(delays_s)):
                            await changed.wait()
            await self._take(number, StoreStep.PUBLISH)
        finally:
            undo()

    async def _try_to_advance(self, number: int) -> bool:
        """Advance a store; False when a step failed and has to be retried later."""
        while True:
            before = self._state(number)
            try:
                await self._advance(number)
            except HeldError as error:
                _logger.info("store %d is not free yet: %s holds it", number, error.holder)
            except (AnabranchError, OSError) as error:
                _logger.warning("store %d: %s: %s", number, type(error).__name__, error)
            except Exception:
                _logger.exception("store %d", number)
            else:
                return True
            if self._state(number) is before:
                return False

    async def _advance(self, number: int) -> None:
        """Carry out steps until the store is in the state that is wanted. Raises if a step fails."""
        while (step := next_step(self._state(number), self._aim(number))) is not None:
            await self._take(number, step)

    def _state(self, number: int) -> StoreState:
        return self._states.get(number, StoreState.UNOWNED)

    def _aim(self, number: int) -> StoreAim:
        patient = asyncio.get_running_loop().time() < self._impatient_at
        awaited = set(range(self._options.workers)) - {self._lease.me.id} if patient else set()
        owned = {store for store, state in self._states.items() if state is not StoreState.UNOWNED}
        living = self._directory.brokers
        return aim_for(number, self._lease.me.id, living, awaited=awaited - owned, stopping=self._stopping)

    async def _take(self, number: int, step: StoreStep) -> None:
        try:
            await self._carry_out(number, step)
        except BaseException:
            self._states[number] = OUTCOMES[step].failed
            raise
        self._states[number] = OUTCOMES[step].done

    async def _carry_out(self, number: int, step: StoreStep) -> None:
        match step:
            case StoreStep.OPEN:
                await self._open(number)
            case StoreStep.PUBLISH:
                await self._publish(number, owned=True)
            case StoreStep.ANNOUNCE:
                await self._options.opened(number)
            case StoreStep.CHECKPOINT:
                await self._storages.checkpoint(number)
            case StoreStep.LEAVE:
                await self._options.closing(number)
            case StoreStep.CLOSE:
                # The next owner waits for the store, unless this broker stops.
                await self._storages.close(number, hastily=not self._stopping)
                _logger.info("store %d is closed", number)
            case StoreStep.WITHDRAW:
                await self._publish(number, owned=False)

    async def _open(self, number: int) -> None:
        name = holder_name(self._lease.me)
        try:
            self._ids[number] = await self._storages.open(number, name)
        except HeldError as error:
            # The holder may be a broker that was paused for longer than its lease. It must end before the
            # store is opened here, or both would write to the same journal. A broker registers before it
            # takes a lock, so a look after the refusal lists every living holder: one that is missing has no
            # lease.
            await self._directory.look()
            if not lease_is_over(error.holder, self._directory.brokers):
                raise
            _logger.warning("store %d is taken from %s, whose lease has ended", number, error.holder)
            self._ids[number] = await self._storages.open(number, name, fence=error.holder)
        try:
            await self._check_identity(number)
        except BaseException:
            await self._storages.close(number, hastily=True)
            raise
        _logger.info("store %d is open", number)

    async def _check_identity(self, number: int) -> None:
        """Raise MissingDataError if the directory that was opened does not hold this store."""
        record = await self._records.read(StoreRecord, records.store_path(number))
        known, found = 0 if record is None else record.store_id, self._ids[number]
        if known and found and known != found:
            raise MissingDataError(
                f"the directory of store {number} is empty or holds another store ({found}, not {known}); "
                "restore the data directory with `anabranch restore`, or give up the messages of this store "
                "with `anabranch store repair --accept-loss`"
            )

    async def _publish(self, number: int, *, owned: bool) -> None:
        """Record that this broker owns a store, or that it no longer does."""
        me = self._lease.me

        def published(found: StoreRecord | None) -> StoreRecord:
            record = found or StoreRecord()
            if owned == ((record.owner, record.generation) == (me.id, me.generation)):
                return record
            return StoreRecord(
                owner=me.id if owned else None,
                generation=me.generation,
                term=record.term + owned,
                store_id=self._ids.get(number) or record.store_id,
            )

        # The former owner closes a store before it withdraws, so both may write the record at the same time.
        await self._records.update_record(StoreRecord, records.store_path(number), published)
        await self._directory.look()
