"""What the supervisor does when things happen at the same time."""

from __future__ import annotations

import os
import signal
import socket

from anabranch.config import BrokerConfig
from anabranch.supervisor import _Supervisor, _Worker


def test_a_signal_between_the_end_of_a_worker_and_its_burial_is_heard_and_does_no_harm() -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    worker = _Worker(0, [], [], pid=ended)
    supervisor = _Supervisor(BrokerConfig(workers=1), [worker], lambda: None)
    supervisor._signalled(signal.SIGTERM, None)
    supervisor._ended(worker, 0)
    awake, wakeup = socket.socketpair()
    with awake, wakeup:
        assert not supervisor._turn(awake)


def test_a_worker_that_is_told_to_stop_before_it_has_begun_ends_well() -> None:
    supervisor = _Supervisor(BrokerConfig(workers=1), [], lambda: None)
    supervisor._signalled(signal.SIGTERM, None)
    worker = _Worker(0, [], [])
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    parent, child = socket.socketpair()
    with parent, child:
        try:
            assert supervisor._become(worker, child) == 0
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
