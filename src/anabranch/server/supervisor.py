"""Several workers on one data directory: started together, restarted one by one, stopped together.

The supervisor binds every socket and keeps it, so the service URL works as long as one worker lives and an
address outlives the process behind it. The supervisor serves no client and never reads the data. Workers are
forked from it, so a new worker starts quickly and shares the memory of the code with the others.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.config.broker import BrokerConfig
from anabranch.data.directory import open_data
from anabranch.errors import AnabranchError
from anabranch.server import node
from anabranch.server.attending import Worker
from anabranch.server.listening import Listeners, bind_workers

log = logging.getLogger(__name__)

RESTART_FIRST_S = 0.05
RESTART_MAX_S = 5.0
RESTART_READY_MAX_S = 0.8
"""The longest delay before the restart of a worker that had been ready: its stores need an owner."""

STEADY_S = 10.0
"""A worker that lived this long did not fail at its start, so its next delay is the shortest again."""

STOP_S = 20.0
"""How long workers may take to stop before they are killed."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
READY = b"r"


def run(config: BrokerConfig) -> int:
    """Serve with several workers until SIGTERM or SIGINT; returns the exit code."""
    node.set_up_logging(config, "supervisor ")
    node.check_ports(config)
    # Workers inherit the lock, so the directory stays locked until the last worker has ended.
    lock = open_data(config.data)
    node.check_files(config)
    node.prepare_metadata(config)
    with contextlib.ExitStack() as sockets:
        sockets.callback(os.close, lock)
        workers = [WorkerProcess(*pair) for pair in enumerate(bind_workers(config, sockets))]
        urls = workers[0].listeners.service_urls(config)
        return Supervisor(config, workers, lambda: print(f"ready {urls}", flush=True)).run()


@dataclass(slots=True)
class WorkerProcess:
    """One worker, through all of its processes."""

    number: int
    listeners: Listeners
    pid: int = 0
    channel: socket.socket | None = None
    """The worker writes READY to it, and stops when the supervisor's end is closed."""
    ready: bool = False
    starts: int = 0
    began_s: float = 0.0
    delay_s: float = RESTART_FIRST_S
    start_at_s: float = 0.0


class Supervisor:
    """Starts, watches and stops the workers; runs on one thread without an event loop."""

    def __init__(self, config: BrokerConfig, workers: list[WorkerProcess], ready: Callable[[], None]) -> None:
        self._config = config
        self._workers = workers
        self._on_ready = ready
        self._all_were_ready = False
        self._stop_requested = False
        self._stop_at_s: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        # Objects that exist now live as long as the process. Frozen, they are not touched by collections in
        # workers, so their memory pages stay shared.
        gc.collect()
        gc.freeze()
        awake, wakeup = socket.socketpair()
        with awake, wakeup:
            awake.setblocking(False)
            wakeup.setblocking(False)
            signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
            for number in SIGNALS:
                signal.signal(number, self.note_signal)
            try:
                while self.step(awake):
                    pass
            finally:
                signal.set_wakeup_fd(-1)
                self._kill_all()
        return self._exit_code

    def note_signal(self, number: int, _frame: object) -> None:
        """Record a signal, which may arrive between any two steps; `step` acts on it."""
        self._stop_requested |= number != signal.SIGCHLD

    def step(self, awake: socket.socket) -> bool:
        """Reap and start the workers that are due, then wait; False when the last worker has ended."""
        self._reap()
        if self._stop_requested and self._stop_at_s is None:
            self._stop()
        now_s = time.monotonic()
        if self._stop_at_s is None:
            for worker in self._workers:
                if not worker.pid and now_s >= worker.start_at_s:
                    self._start(worker)
        elif not any(worker.pid for worker in self._workers):
            return False
        elif now_s >= self._stop_at_s:
            self._exit_code = 1
            self._kill_all()
        self._wait(awake)
        return True

    def _wait(self, awake: socket.socket) -> None:
        stopped = [worker for worker in self._workers if not worker.pid]
        due = [w.start_at_s for w in stopped] if self._stop_at_s is None else [self._stop_at_s]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        channels = {w.channel: w for w in self._workers if w.channel is not None and not w.ready}
        unserved = [one for w in stopped for one in w.listeners.own]
        found, _, _ = select.select([awake, *channels, *unserved], [], [], timeout_s)
        for one in found:
            if one is awake:
                with contextlib.suppress(BlockingIOError):
                    awake.recv(4096)
            elif one in unserved:
                # Hang up on a client of a worker that is not running, so that it looks up the new owner.
                with contextlib.suppress(OSError):
                    one.accept()[0].close()
            elif one.recv(1) == READY:
                channels[one].ready = True
                self._note_ready()
            else:
                # The worker died before it was ready; the next step reaps it.
                self._close_channel(channels[one])

    def _note_ready(self) -> None:
        if not self._all_were_ready and all(worker.ready for worker in self._workers):
            self._all_were_ready = True
            self._on_ready()

    def _start(self, worker: WorkerProcess) -> None:
        ours, theirs = socket.socketpair()
        worker.starts += 1
        worker.began_s = time.monotonic()
        worker.ready = False
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os._exit(self.run_worker(worker, theirs))
        theirs.close()
        worker.pid, worker.channel = pid, ours
        log.info("worker %d is process %d", worker.number, pid)

    def run_worker(self, worker: WorkerProcess, parent: socket.socket) -> int:
        """Run a worker in the process that was just forked; returns its exit code."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._stop_requested:
            # The signal was sent to this process too, or the supervisor sends the next one.
            return 0
        # Another worker's channel held open here would hide the end of the supervisor from that worker, and
        # its listeners would accept connections that no process serves.
        for other in self._workers:
            self._close_channel(other)
            if other is not worker:
                for listener in other.listeners.own:
                    listener.close()
        if worker.starts > 1 and not os.environ.get("ANABRANCH_FAILPOINTS", "").startswith("@"):
            # A failpoint of a test applies to the first process only; failpoints in a file count themselves.
            os.environ.pop("ANABRANCH_FAILPOINTS", None)
        node.set_up_logging(self._config, f"worker {worker.number} ")

        def ready() -> None:
            parent.send(READY)

        code = 1
        try:
            started = Worker(worker.number, worker.listeners, ready, parent)
            code = node.run_worker(self._config, started)
        except KeyboardInterrupt:
            code = 0
        except (AnabranchError, OSError) as error:
            print(f"anabranch: worker {worker.number}: {error}", file=sys.stderr)
        except BaseException:
            log.exception("worker %d", worker.number)
        logging.shutdown()
        sys.stderr.flush()
        return code

    def _reap(self) -> None:
        """Collect the exit codes of workers that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self.worker_ended(worker, os.waitstatus_to_exitcode(status))

    def worker_ended(self, worker: WorkerProcess, code: int) -> None:
        worker.pid = 0
        self._close_channel(worker)
        if self._stop_at_s is not None:
            # A worker that has just been forked dies of SIGTERM, because it has no handler yet.
            self._exit_code = self._exit_code or int(code not in (0, -signal.SIGTERM))
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if not self._all_were_ready and code > 0:
            # The worker has printed the reason, and a restart would fail for the same reason.
            log.error("worker %d could not start", worker.number)
            self._exit_code = 1
            self._stop()
            return
        now_s = time.monotonic()
        if now_s >= worker.began_s + STEADY_S:
            worker.delay_s = RESTART_FIRST_S
        log.warning("worker %d ended with %s; the next starts in %g s", worker.number, how, worker.delay_s)
        worker.start_at_s = now_s + worker.delay_s
        worker.delay_s = min(2 * worker.delay_s, RESTART_READY_MAX_S if worker.ready else RESTART_MAX_S)

    def _stop(self) -> None:
        self._stop_at_s = time.monotonic() + STOP_S
        for worker in self._workers:
            if worker.pid:
                # A worker that was suspended handles SIGTERM only after SIGCONT.
                os.kill(worker.pid, signal.SIGTERM)
                os.kill(worker.pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)

    def _close_channel(self, worker: WorkerProcess) -> None:
        if worker.channel is not None:
            worker.channel.close()
            worker.channel = None
