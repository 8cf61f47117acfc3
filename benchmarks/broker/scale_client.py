"""Clients made of frames for the figures of scale: many topics or connections from one cheap process."""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from google.protobuf.message import Message

from anabranch.protocol import commands, singles
from anabranch.protocol.commands import Command, CommandCutter, Send, SendReceipt
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from benchmarks.results import percentile_ms

TIMEOUT_S = 60.0
PING_EVERY_S = 0.001
CONNECT = commands.encode(pb.CommandConnect(client_version="bench", protocol_version=21))
PING = commands.encode(pb.CommandPing())
VALUE = b"x" * 100


class FrameClient:
    """One connection that sends many requests at once and waits for as many answers."""

    def __init__(self, port: int) -> None:
        self._cutter = CommandCutter()
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(CONNECT, 1)

    def close(self) -> None:
        self._socket.close()

    def ping(self) -> None:
        self._ask(PING, 1)

    def ask(self, requests: Iterable[Message]) -> list[Command]:
        """Send requests, each with one answer; return the answers as they arrive."""
        frames = [commands.encode(request) for request in requests]
        return self._ask(b"".join(frames), len(frames))

    def publish(self, producers: int, entries: int) -> None:
        """Send this many entries through each of the producers 0, 1, 2..., and wait for the receipts."""
        frames = [
            b"".join(encode_send(producer, sequence, 1, 0, _entry(sequence)))
            for producer in range(producers)
            for sequence in range(entries)
        ]
        self._ask(b"".join(frames), len(frames))

    def send(self, producer: int, entries: Sequence[tuple[int, bytes]]) -> None:
        """Send entries, each with its sequence id, through a producer, and wait for the receipts."""
        frames = [b"".join(encode_send(producer, sequence, 1, 0, entry)) for sequence, entry in entries]
        self._ask(b"".join(frames), len(frames))

    def _ask(self, data: bytes, answers: int) -> list[Command]:
        self._socket.sendall(data)
        found: list[Command] = []
        while len(found) < answers:
            received = self._socket.recv(1 << 20)
            if not received:
                raise ConnectionError("the broker closed the connection")
            found += [command for command in self._cutter.read(received) if _is_answer(command)]
        return found


def _is_answer(command: Command) -> bool:
    if isinstance(command, pb.CommandError | pb.CommandSendError):
        raise RuntimeError(f"the broker refused a request: {command.message}")
    return isinstance(command, SendReceipt | Message) and not isinstance(command, pb.CommandPing | Send)


def _entry(sequence: int) -> bytes:
    return singles.build_single(VALUE, None, sequence, producer_name="bench", publish_time_ms=1)


class Pinger:
    """Pings a broker from a thread and keeps the round trips; a long one means that the loop stood still."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.trips_s: list[float] = []

    @property
    def longest_ms(self) -> float:
        return max(self.trips_s) * 1e3

    @property
    def p99_ms(self) -> float:
        return percentile_ms(self.trips_s, 99)

    def __enter__(self) -> Pinger:
        self._thread.start()
        self._begun.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        client = FrameClient(self._port)
        while not self._ended.is_set():
            began = time.perf_counter()
            client.ping()
            self.trips_s.append(time.perf_counter() - began)
            self._begun.set()
            time.sleep(PING_EVERY_S)
        client.close()


def timed(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fetch(port: int, path: str, headers: dict[str, str] | None = None) -> bytes:
    """The body of one GET; raises RuntimeError for an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}: {body[:200]!r}")
    return body


@contextlib.contextmanager
def idle_connections(port: int, count: int, at_once: int = 100) -> Iterator[Sequence[socket.socket]]:
    """Hold this many connections that have finished the handshake and answered one PING."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            some = [socket.create_connection(("127.0.0.1", port), TIMEOUT_S) for _ in range(at_once)]
            held += some
            for data in (CONNECT, PING):
                _exchange(some, data)
        yield held
    finally:
        for one in held:
            one.close()


def _exchange(sockets: Sequence[socket.socket], data: bytes) -> None:
    """Send the same bytes through all sockets, and read one answer from each."""
    with selectors.DefaultSelector() as waiting:
        for one in sockets:
            one.sendall(data)
            waiting.register(one, selectors.EVENT_READ)
        left = len(sockets)
        while left:
            for key, _ in waiting.select(TIMEOUT_S):
                assert isinstance(key.fileobj, socket.socket)
                if not key.fileobj.recv(4096):
                    raise ConnectionError("the broker closed an idle connection")
                waiting.unregister(key.fileobj)
                left -= 1
