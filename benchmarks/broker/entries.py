"""The broker alone: its start, its idle memory, and small entries from a generator that only moves bytes.

The SEND frames are made before the clock starts, and only the lengths of receipts are read, so that the
generator costs almost nothing and the figure belongs to the broker.
"""

from __future__ import annotations

import socket
import ssl
import statistics
import struct
import threading
import time
from pathlib import Path

from anabranch.protocol import commands, singles
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

WINDOW = 2000
VALUE = b"x" * 100


class WireProducers:
    """One connection with a producer on each topic and frames ready to go."""

    def __init__(self, port: int, topics: list[str], entries: int, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._rest = b""
        self.send(pb.CommandConnect(client_version="bench", protocol_version=21))
        self.next_frames(1)
        for number, topic in enumerate(topics):
            self.send(pb.CommandProducer(topic=topic, producer_id=number, request_id=number))
        self.next_frames(len(topics))
        self.frames = [_frame(number % len(topics), number // len(topics)) for number in range(entries)]

    def send(self, message: object) -> None:
        self._socket.sendall(commands.encode(message))  # type: ignore[arg-type]

    def next_frames(self, count: int) -> int:
        """Read at least `count` whole frames from the socket; return how many."""
        taken = 0
        while taken < count:
            data = self._rest + self._socket.recv(1 << 20)
            at = 0
            while len(data) - at >= 4:
                (size,) = struct.unpack_from(">I", data, at)
                if len(data) - at < 4 + size:
                    break
                at += 4 + size
                taken += 1
            self._rest = data[at:]
        return taken

    def run(self) -> float:
        """Publish all frames with at most WINDOW unanswered; return the seconds to the last receipt."""
        room = threading.Semaphore(WINDOW // 100)
        blocks = [b"".join(self.frames[at : at + 100]) for at in range(0, len(self.frames), 100)]
        began = time.perf_counter()

        def write() -> None:
            for block in blocks:
                room.acquire()
                self._socket.sendall(block)

        writer = threading.Thread(target=write)
        writer.start()
        answered = released = 0
        while answered < len(self.frames):
            answered += self.next_frames(1)
            while released < answered // 100:
                released += 1
                room.release()
        writer.join()
        seconds = time.perf_counter() - began
        self._socket.close()
        return seconds


def _frame(producer: int, sequence: int) -> bytes:
    entry = singles.build_single(VALUE, None, sequence, producer_name="bench", publish_time_ms=1)
    return b"".join(encode_send(producer, sequence, 1, 0, entry))


def entries_per_second(scratch: Path, topics: int, entries: int) -> float:
    with BrokerProcess(scratch / f"data-{topics}") as broker:
        names = [f"persistent://public/default/bench-{n}" for n in range(topics)]
        WireProducers(broker.port, [f"{name}-warm" for name in names], entries // 5).run()
        return entries / WireProducers(broker.port, names, entries).run()


def run_start(scratch: Path, fast: bool) -> list[Row]:
    starts: list[float] = []
    memory: list[int] = []
    for number in range(3 if fast else 7):
        with BrokerProcess(scratch / f"data-{number}") as broker:
            starts.append(broker.started_in_s)
            time.sleep(1.0)
            memory.append(broker.memory_bytes())
    return [
        Row("start to ready, median", "s", statistics.median(starts), goal="at most 0.5 s"),
        Row("idle memory, median", "MB", statistics.median(memory) / 1e6, goal="at most 80 MB"),
    ]


def run_entries(scratch: Path, fast: bool) -> list[Row]:
    entries = 60_000 if fast else 400_000
    one = entries_per_second(scratch, 1, entries)
    many = entries_per_second(scratch, 64, entries)
    return [
        Row("broker, 100-byte entries, fsync on", "entries/s", one, goal="100,000 per core"),
        Row("the same over 64 segments", "entries/s", many, "one segment", one, "ratio at least 0.80"),
    ]
