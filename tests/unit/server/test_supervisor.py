"""A supervisor that receives signals between any two steps."""

from __future__ import annotations

import os
import signal
import socket

from anabranch.config.broker import BrokerConfig
from anabranch.server.listening import Listeners
from anabranch.server.supervisor import Supervisor, WorkerProcess


def test_a_signal_between_the_end_of_a_worker_and_its_reaping_stops_the_supervisor() -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    worker = WorkerProcess(0, Listeners(), pid=ended)
    supervisor = Supervisor(BrokerConfig(workers=1), [worker], lambda: None)
    supervisor.note_signal(signal.SIGTERM, None)
    supervisor.worker_ended(worker, 0)
    awake, wakeup = socket.socketpair()
    with awake, wakeup:
        assert not supervisor.step(awake)


def test_a_worker_that_gets_a_signal_before_it_runs_exits_with_0() -> None:
    supervisor = Supervisor(BrokerConfig(workers=1), [], lambda: None)
    supervisor.note_signal(signal.SIGTERM, None)
    worker = WorkerProcess(0, Listeners())
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    parent, child = socket.socketpair()
    with parent, child:
        try:
            assert supervisor.run_worker(worker, child) == 0
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
