"""The faults of a cluster run, at random times: of brokers, links, disks, clocks, metadata and consumers.

Must not know what the clients do, nor judge the outcome.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from simulation.cluster.host import Host
from simulation.runs.clients import Clients
from simulation.runs.shape import Shape
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from simulation.world.transport import Mode

ROOMY_BYTES = 2**50

CLOCK_ERROR_MS = 3_600_000
"""The largest error of a wall clock, at the start and after a jump."""


class Trouble:
    """The faults that the shape of one run asks for."""

    def __init__(self, clients: Clients, shape: Shape) -> None:
        self.cluster = clients.cluster
        self.counts = clients.counts
        self.loop = clients.cluster.loop
        self.rng = clients.rng
        self.shape = shape
        self._clients = clients

    async def run(self) -> None:
        """Let every fault happen; return when the busy time is over, with healthy disks."""
        shape = self.shape
        planned: list[Callable[[], None]] = [self._kill_broker] * shape.kills
        planned += [self._break_link] * shape.link_faults
        planned += [self._clients.kill_consumer] * shape.consumer_deaths
        planned += [self._clients.pause_consumer] * shape.consumer_pauses
        planned += [self._clients.let_consumer_leave] * shape.consumer_leaves
        planned += [self._pause_broker] * shape.pauses
        planned += [self._stop_broker] * shape.stops
        planned += [self._stall_store] * shape.stalls
        planned += [self._lapse] * shape.lapses
        planned += [self._jump_clock] * shape.clock_jumps
        planned += [self._fail_write] * shape.disk.failed_writes
        planned += [self._fail_reads] * shape.disk.failed_reads
        planned += [self._fill_disk] * shape.disk.full
        planned += [self._damage_record] * shape.disk.damaged
        if shape.disk.slow:
            for platter in self.cluster.platters.values():
                platter.sync_latency_s = (0.001, 0.3)
        times = sorted(self.rng.uniform(0, shape.busy_s) for _ in planned)
        self.rng.shuffle(planned)
        for time, fault in zip(times, planned, strict=True):
            await asyncio.sleep(max(0.0, time - self.loop.time()))
            fault()
        await asyncio.sleep(max(0.0, shape.busy_s - self.loop.time()))
        for platter in self.cluster.platters.values():
            platter.sync_latency_s = Platter.sync_latency_s
            platter.faults.clear()
            _heal(platter)

    def _any_host(self) -> Host:
        return self.rng.choice(self.cluster.hosts)

    def _kill_broker(self) -> None:
        if self.rng.random() < (0.5 if self.shape.workers == 1 else 0.2):
            self.cluster.lose_machine()
        else:
            self.cluster.kill_broker(self._any_host())

    def _pause_broker(self) -> None:
        self.cluster.pause_broker(self._any_host(), self.rng.uniform(0.1, 4.0) * self.shape.lease_s)

    def _stop_broker(self) -> None:
        self.loop.create_task(self.cluster.stop_broker(self._any_host()))

    def _stall_store(self) -> None:
        life = self._any_host().life
        if life is not None:
            self.counts["metadata stalled"] += 1
            usual, life.store.latency_s = life.store.latency_s, (0.0, 2 * self.shape.lease_s)
            self.loop.call_later(self.rng.uniform(0.1, 5.0), setattr, life.store, "latency_s", usual)

    def _lapse(self) -> None:
        life = self._any_host().life
        if life is not None and life.process.alive:
            self.counts["lease lost"] += 1
            life.store.lapse()

    def _jump_clock(self) -> None:
        life = self._any_host().life
        if life is not None:
            self.counts["clock jumped"] += 1
            life.clock.jump(self.rng.randint(-CLOCK_ERROR_MS, CLOCK_ERROR_MS))

    def _any_platter(self) -> Platter:
        return self.rng.choice(list(self.cluster.platters.values()))

    def _fail_write(self) -> None:
        self.counts["disk error"] += 1
        self._any_platter().fail_next(self.rng.choice(("append", "sync")))

    def _fail_reads(self) -> None:
        platter = self._any_platter()
        platter.read_errors = self.rng.choice((0.5, 0.9))
        self.loop.call_later(self.rng.uniform(0.05, 2.0), _heal, platter)

    def _fill_disk(self) -> None:
        platter = self._any_platter()
        self.counts["disk filled"] += 1
        used = platter.capacity_bytes - platter.free_bytes
        platter.capacity_bytes = used + self.rng.choice((0, 100, 5000))
        self.loop.call_later(self.rng.uniform(0.1, 3.0), _heal, platter)

    def _damage_record(self) -> None:
        """Turn over a bit of a stored message; then all messages of its entry may be lost."""
        history = self.cluster.history
        stored = [sent for sent in history.sent.values() if sent.place is not None]
        if not stored:
            return
        chosen = self.rng.choice(stored)
        if not self._turn_bit_of(chosen.uid.encode()):
            return
        self.counts["record damaged"] += 1
        # The byte behind a shorter uid may have completed it to the chosen one.
        entries = {
            sent.place[:3] for sent in stored if sent.place is not None and chosen.uid.startswith(sent.uid)
        }
        for sent in stored:
            if sent.place is not None and sent.place[:3] in entries:
                self._clients.readers.excuse(sent)

    def _turn_bit_of(self, value: bytes) -> bool:
        """Turn over one bit of the first place in a ledger file that has this value."""
        pattern = re.compile(re.escape(value) + rb"(?!\d)")
        for platter in self.cluster.platters.values():
            for name in sorted(platter.files):
                file = platter.files[name]
                found = pattern.search(file.data) if name.startswith("ledgers/") else None
                if found is not None:
                    file.data[self.rng.randrange(*found.span())] ^= 1 << self.rng.randrange(8)
                    return True
        return False

    def _break_link(self) -> None:
        network = self.cluster.network
        link = self.rng.choice(self.cluster.links(self._one_end()))
        kind = self.rng.choice(("reset", "cut", "hold", "swallow"))
        self.counts[f"link {kind}"] += 1
        if kind == "reset":
            network.reset(link)
        elif kind == "cut":
            network.cut(link)
        else:
            network.set_mode(link, Mode.HELD if kind == "hold" else Mode.BLACK_HOLE)
            self.loop.call_later(self.rng.uniform(0.01, 8.0), network.set_mode, link, Mode.OPEN)

    def _one_end(self) -> SimProcess:
        """Choose one end of the link to break: a client, or one of several brokers."""
        brokers = [host.process for host in self.cluster.running if host.process is not None]
        if len(self.cluster.hosts) > 1 and brokers and self.rng.random() < 0.3:
            return self.rng.choice(brokers)
        return self.rng.choice(self._clients.processes)


def _heal(platter: Platter) -> None:
    platter.read_errors = 0.0
    platter.capacity_bytes = ROOMY_BYTES
