"""The address of a dead worker: a client that connects there does not wait."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from anabranch.data.directory import METADATA_FILE
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.sqlite import SqliteStore
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker


async def port_of(broker: BrokerProcess, number: int) -> int:
    """The address that a lookup gives for a worker."""
    store = SqliteStore(broker.data / METADATA_FILE)
    found = await store.get(records.broker_path(number))
    await store.close()
    assert found is not None
    return int(records.decode(BrokerRecord, found.value).url.rsplit(":", 1)[1])


def hung_up_after_s(port: int) -> float:
    """Seconds until a silent connection is closed."""
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        contextlib.suppress(ConnectionResetError),
    ):
        assert connection.recv(1) == b""
    return time.monotonic() - began


async def test_clients_of_a_worker_that_is_dead_are_sent_away_at_once(make_broker: MakeBroker) -> None:
    broker = make_broker(workers=2).start()
    port = await port_of(broker, 1)
    # Each time it is started a little later; the last wait is long enough to look at.
    for _ in range(6):
        os.kill(broker.worker(1), signal.SIGKILL)
    assert hung_up_after_s(port) < 1.0
    broker.worker(1)
    assert broker.stop() == 0
