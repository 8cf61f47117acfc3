"""Several workers on one data directory: started together, started again when one dies, stopped together.

The supervisor binds every socket and keeps it, so that the service URL works as long as one worker lives and
an address outlives the process behind it. It serves nothing itself and never looks into the data. Workers are
forked from it: a new one is there in no time, and shares the memory of the code with the others.
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
from dataclasses import dataclass, field
from pathlib import Path

from anabranch import node
from anabranch.config import BrokerConfig
from anabranch.errors import AnabranchError, ConflictError
from anabranch.metadata.sqlite import end_sessions

log = logging.getLogger(__name__)

RESTART_FIRST_S = 0.05
RESTART_MAX_S = 5.0
RESTART_READY_MAX_S = 0.8
"""The same for one that had served: what it did then is worth more than the work of starting it."""
STEADY_S = 10.0
"""A worker that lived so long did not die of its start."""

STOP_S = 20.0
"""How long workers may take to stop before they are killed."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
READY = b"r"


def run(config: BrokerConfig) -> int:
    """Serve with several workers until SIGTERM or SIGINT; the exit code."""
    node.set_up_logging(config, "supervisor ")
    # Workers inherit the lock: the directory stays taken until the last of them is gone.
    lock = node.lock_data(config)
    end_sessions(Path(config.data) / node.METADATA_FILE)
    with contextlib.ExitStack() as sockets:
        sockets.callback(os.close, lock)
        shared = sockets.enter_context(node.listen(config.host, config.port, "--port"))
        shared_http = sockets.enter_context(node.listen(config.host, config.http_port, "--http-port"))
        workers = []
        for number in range(config.workers):
            own = sockets.enter_context(_own_listener(config, config.port, number))
            own_http = sockets.enter_context(_own_listener(config, config.http_port, number))
            workers.append(_Worker(number, [own, shared], [own_http, shared_http]))
        urls = f"{node.url_of('pulsar', config, shared)} {node.url_of('http', config, shared_http)}"
        return _Supervisor(config, workers, lambda: print(f"ready {urls}", flush=True)).run()


def _own_listener(config: BrokerConfig, port: int, number: int) -> socket.socket:
    """The address of one worker: behind the shared one, or any that is free."""
    if port:
        try:
            return node.listen(config.host, port + 1 + number, "--port")
        except (ConflictError, OverflowError):
            log.warning("port %d is not free; worker %d takes another one", port + 1 + number, number)
    return node.listen(config.host, 0, "--port")


def _turn_away(listener: socket.socket) -> None:
    """Hang up on a client of a worker that is not there: what it looks for may be elsewhere by now."""
    with contextlib.suppress(OSError):
        listener.accept()[0].close()


@dataclass(slots=True)
class _Worker:
    """One worker, over all of its lives."""

    number: int
    listeners: list[socket.socket]
    http_listeners: list[socket.socket]
    pid: int = 0
    channel: socket.socket | None = None
    """Its end says that it is ready; that the other end is closed tells it that the supervisor is gone."""
    ready: bool = False
    lives: int = 0
    began_s: float = 0.0
    delay_s: float = RESTART_FIRST_S
    start_at_s: float = field(default=0.0)


class _Supervisor:
    def __init__(self, config: BrokerConfig, workers: list[_Worker], ready: Callable[[], None]) -> None:
        self._config = config
        self._workers = workers
        self._tell_ready = ready
        self._was_ready = False
        self._told_to_stop = False
        self._stop_at_s: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        # What is there now lives as long as the process; a collection in a worker need not copy its pages.
        gc.collect()
        gc.freeze()
        awake, wakeup = socket.socketpair()
        with awake, wakeup:
            awake.setblocking(False)
            wakeup.setblocking(False)
            signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
            for number in SIGNALS:
                signal.signal(number, self._signalled)
            try:
                while self._turn(awake):
                    pass
            finally:
                signal.set_wakeup_fd(-1)
                self._kill_all()
        return self._exit_code

    def _signalled(self, number: int, _frame: object) -> None:
        # Only noted: it may come between any two steps, such as the end of a worker and its burial.
        self._told_to_stop |= number != signal.SIGCHLD

    def _turn(self, awake: socket.socket) -> bool:
        """Start and bury what is due, then wait for news; False when the last worker is gone."""
        self._bury()
        if self._told_to_stop and self._stop_at_s is None:
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
        due = [w.start_at_s for w in self._workers if not w.pid] if self._stop_at_s is None else []
        due += [] if self._stop_at_s is None else [self._stop_at_s]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        channels = {w.channel: w for w in self._workers if w.channel is not None and not w.ready}
        deserted = [w.listeners[0] for w in self._workers if not w.pid]
        deserted += [w.http_listeners[0] for w in self._workers if not w.pid]
        found, _, _ = select.select([awake, *channels, *deserted], [], [], timeout_s)
        for one in found:
            if one is awake:
                with contextlib.suppress(BlockingIOError):
                    awake.recv(4096)
            elif one in deserted:
                _turn_away(one)
            elif one.recv(1) == READY:
                channels[one].ready = True
                self._check_ready()
            else:
                # It died before it was ready; who has died is found out at the next turn.
                self._close_channel(channels[one])

    def _check_ready(self) -> None:
        if not self._was_ready and all(worker.ready for worker in self._workers):
            self._was_ready = True
            self._tell_ready()

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        worker.lives += 1
        worker.began_s = time.monotonic()
        worker.ready = False
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os._exit(self._become(worker, theirs))
        theirs.close()
        worker.pid, worker.channel = pid, ours
        log.info("worker %d is process %d", worker.number, pid)

    def _become(self, worker: _Worker, parent: socket.socket) -> int:
        """Run a worker in the process that was just forked; its exit code."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self._told_to_stop:
            # It was meant for this process too, or the next one will be.
            return 0
        # Another worker's channel held open here would hide the end of the supervisor from it, and its own
        # addresses would take connections that nobody serves.
        for other in self._workers:
            self._close_channel(other)
            if other is not worker:
                other.listeners[0].close()
                other.http_listeners[0].close()
        if worker.lives > 1 and not os.environ.get("ANABRANCH_FAILPOINTS", "").startswith("@"):
            # What a test wants to happen once has happened; a file sees to that by itself.
            os.environ.pop("ANABRANCH_FAILPOINTS", None)
        node.set_up_logging(self._config, f"worker {worker.number} ")

        def ready() -> None:
            parent.send(READY)

        code = 1
        try:
            code = node.run_worker(
                self._config,
                node.Worker(
                    worker.number,
                    worker.listeners,
                    worker.http_listeners,
                    node.url_of("pulsar", self._config, worker.listeners[0]),
                    node.url_of("http", self._config, worker.http_listeners[0]),
                    ready,
                    parent,
                ),
            )
        except KeyboardInterrupt:
            code = 0
        except (AnabranchError, OSError) as error:
            print(f"anabranch: worker {worker.number}: {error}", file=sys.stderr)
        except BaseException:
            log.exception("worker %d", worker.number)
        logging.shutdown()
        sys.stderr.flush()
        return code

    def _bury(self) -> None:
        """Take leave of workers that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, code: int) -> None:
        worker.pid = 0
        self._close_channel(worker)
        if self._stop_at_s is not None:
            # One that had only just begun has not learned yet what to do when it is told to stop.
            self._exit_code = self._exit_code or int(code not in (0, -signal.SIGTERM))
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if not self._was_ready and code > 0:
            # It has said why. What is wrong at the first start will not be right at the next.
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
                # One that somebody has stopped could not hear the first.
                os.kill(worker.pid, signal.SIGTERM)
                os.kill(worker.pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)

    def _close_channel(self, worker: _Worker) -> None:
        if worker.channel is not None:
            worker.channel.close()
            worker.channel = None
