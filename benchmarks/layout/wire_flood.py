"""A producer made of frames only: it measures layout changes without the help or delay of a client."""

from __future__ import annotations

import select
import socket
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from anabranch.model.hashing import bucket_hash, key_hash, segment_hash
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol import commands, singles
from anabranch.protocol.commands import Command, CommandCutter, SendReceipt
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb

PRODUCER_NAME = "wire-flood"
BUFFER_BYTES = 1 << 18
SILENCE_S_MAX = 20.0


@dataclass
class _FloodedSegment:
    """A segment and its unanswered numbers, in order."""

    open: bool = False
    sealed: bool = False
    unanswered: deque[int] = field(default_factory=deque)


class WireFlood:
    """Sends rising numbers, one in each entry, with `in_flight` of them unanswered; the keys take turns."""

    def __init__(self, port: int, topic: TopicName, keys: Sequence[str], in_flight: int) -> None:
        # Arrays, because each collection of garbage would visit every item of a list.
        self.sent = array("d")
        self.answered = array("d")
        self.full = False
        """Whether `in_flight` sends were unanswered since this was last set to False."""
        self._topic = topic
        self._keys = keys
        self._slots = [segment_hash(key_hash(key)) for key in keys]
        self._buckets = [bucket_hash(key_hash(key)) for key in keys]
        self._in_flight = in_flight
        self._open = 0
        self._heard_at = 0.0
        self._segments: dict[int, _FloodedSegment] = {}
        self._starts: list[int] = []
        self._routes: list[int] = []
        self._output = bytearray()
        self._cutter = CommandCutter()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._output += commands.encode(pb.CommandConnect(client_version="bench", protocol_version=21))
        self._output += commands.encode(pb.CommandScalableTopicLookup(session_id=1, topic=str(topic)))

    def close(self) -> None:
        self._socket.close()

    def run(self, done: Callable[[], bool]) -> None:
        """Send until `done` returns True, then wait for the last receipt."""
        self._heard_at = time.perf_counter()
        while not done():
            self._fill()
            self._turn()
        while self._open:
            self._turn()

    def _fill(self) -> None:
        while self._routes and self._open < self._in_flight and len(self._output) < BUFFER_BYTES:
            number = len(self.sent)
            self.sent.append(time.perf_counter())
            self.answered.append(0.0)
            self._open += 1
            self._send(number)
        if self._open == self._in_flight:
            self.full = True

    def _send(self, number: int) -> None:
        """Send a number to its segment, which keeps it until the receipt arrives or the segment is sealed."""
        at = self._slots[number % len(self._slots)]
        id_ = self._routes[bisect_right(self._starts, at) - 1]
        segment = self._segments[id_]
        segment.unanswered.append(number)
        if segment.open:
            self._frame(id_, number)

    def _frame(self, id_: int, number: int) -> None:
        at = number % len(self._keys)
        entry = singles.build_single(
            b"%d" % number,
            self._keys[at],
            number,
            producer_name=PRODUCER_NAME,
            publish_time_ms=int(time.time() * 1000),
            hash_range=(self._buckets[at], self._buckets[at]),
        )
        for part in encode_send(id_, number, 1, 0, entry):
            self._output += part

    def _turn(self) -> None:
        """Wait for the socket, write and read."""
        readable, writable, _ = select.select(
            [self._socket], [self._socket] if self._output else [], [], 0.01
        )
        if writable:
            del self._output[: self._socket.send(self._output)]
        if time.perf_counter() - self._heard_at > SILENCE_S_MAX:
            raise TimeoutError(f"{self._open} sends got no answer for {SILENCE_S_MAX:g} s")
        if readable:
            self._heard_at = time.perf_counter()
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            for command in self._cutter.read(data):
                self._handle(command)

    def _handle(self, command: Command) -> None:
        if isinstance(command, SendReceipt):
            number = self._segments[command.producer_id].unanswered.popleft()
            if number != command.sequence_id:
                raise RuntimeError(f"got a receipt for {command.sequence_id} instead of {number}")
            self.answered[number] = time.perf_counter()
            self._open -= 1
        elif isinstance(command, pb.CommandCloseProducer | pb.CommandSendError):
            # The broker refuses each send that arrives after the seal.
            if (closed := self._segments.get(command.producer_id)) is not None:
                closed.open, closed.sealed = False, True
        elif isinstance(command, pb.CommandProducerSuccess):
            segment = self._segments[command.request_id]
            segment.open = True
            for number in segment.unanswered:
                self._frame(command.request_id, number)
        elif isinstance(command, pb.CommandScalableTopicUpdate):
            self._follow(command.dag)
        elif isinstance(command, pb.CommandPing):
            self._output += commands.encode(pb.CommandPong())
        elif isinstance(command, pb.CommandError):
            raise RuntimeError(command.message)

    def _follow(self, dag: pb.ScalableTopicDAG) -> None:
        """Open the new segments and send them the messages that sealed segments refused, oldest first."""
        active = sorted(
            (info for info in dag.segments if info.state == pb.ACTIVE), key=lambda i: i.hash_start
        )
        self._starts = [info.hash_start for info in active]
        self._routes = [info.segment_id for info in active]
        gone = [self._segments.pop(id_) for id_ in self._segments.keys() - set(self._routes)]
        assert all(segment.sealed for segment in gone), "a layout arrived before its parents were closed"
        for info in active:
            if info.segment_id not in self._segments:
                self._open_segment(info)
        for number in sorted(chain.from_iterable(segment.unanswered for segment in gone)):
            self._send(number)

    def _open_segment(self, info: pb.SegmentInfoProto) -> None:
        self._segments[info.segment_id] = _FloodedSegment()
        name = self._topic.segment_name(HashRange(info.hash_start, info.hash_end), info.segment_id)
        self._output += commands.encode(
            pb.CommandProducer(
                topic=str(name),
                producer_id=info.segment_id,
                request_id=info.segment_id,
                producer_name=PRODUCER_NAME,
                user_provided_producer_name=True,
            )
        )
