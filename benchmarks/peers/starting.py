"""`make peers`: a Kafka that syncs every append, started once for any number of benchmarks.

`python -m benchmarks.peers.starting` fetches its jars and starts it; with `stop` it ends it again. A
benchmark that finds none running starts one for itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.peers.kafka_peer import FSYNC, PEER, KafkaPeer

RUNNING: Final = Path("build/peers.json")
DATA: Final = Path("build/peers")
PACKAGES: Final = {"confluent_kafka": "confluent-kafka", "aiokafka": "aiokafka", "pulsar": "pulsar-client"}


class RunningPeer(msgspec.Struct):
    """A server that `make peers` has started."""

    address: str
    pid: int


def find_running() -> RunningPeer | None:
    """The Kafka that `make peers` started, if it still answers."""
    if not RUNNING.exists():
        return None
    found = msgspec.json.decode(RUNNING.read_bytes(), type=RunningPeer)
    host, _, port = found.address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return found
    return None


@contextlib.contextmanager
def kafka(scratch: Path) -> Iterator[str | None]:
    """The address of a Kafka, running already or started for this benchmark; None if there is none."""
    running = find_running()
    if running is not None:
        yield running.address
        return
    peer = KafkaPeer.find(connector=False)
    if peer is None:
        yield None
        return
    with peer.started(scratch, FSYNC) as address:
        yield address


def missing_packages() -> list[str]:
    """The clients of peers that are not installed."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


def start() -> int:
    for package in missing_packages():
        print(f"{package} is not installed: the comparison leaves it out", file=sys.stderr)
    running = find_running()
    if running is None:
        peer = KafkaPeer.find(connector=False)
        if peer is None:
            return 0
        shutil.rmtree(DATA, ignore_errors=True)
        process, address = peer.launch(DATA / "kafka", FSYNC)
        running = RunningPeer(address, process.pid)
        RUNNING.write_bytes(msgspec.json.encode(running))
    print(f"{PEER} at {running.address}, process {running.pid}; `make peers STOP=1` stops it")
    return 0


def stop() -> int:
    running = find_running()
    if running is not None:
        os.kill(running.pid, signal.SIGTERM)
        print(f"stopped {PEER} at {running.address}")
    RUNNING.unlink(missing_ok=True)
    return 0


def main(words: Sequence[str]) -> int:
    return stop() if "stop" in words else start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
