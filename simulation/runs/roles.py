"""Roles in a cluster run: what each client may do, intruders without rights, and rights that are withdrawn.

An intruder speaks the protocol itself, because a client would stop at the first refusal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from anabranch.broker.broker import Broker
from anabranch.errors import AnabranchError
from anabranch.metadata.records import NamespaceRecord
from anabranch.protocol.commands import encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from simulation.cluster.cluster import PORT
from simulation.cluster.guard import SimGuard
from simulation.runs.clients import Clients
from simulation.runs.liars import PATIENCE_S, WireUser
from simulation.runs.reader_kinds import STREAM
from simulation.runs.readers import TOPIC
from simulation.runs.shape import READER, SENDER, Shape
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

INTRUDER = "intruder"
GRANTS: Final = {SENDER: ("produce",), READER: ("consume",)}
NAMESPACE: Final = f"{TOPIC.tenant}/{TOPIC.namespace}"
WITHDRAWN_S = (0.1, 3.0)
LATE_S = 1.0
"""After this time all brokers know of a change, even if their metadata store is slow to tell."""

Attempt = Callable[[str], Message]
"""Makes a command from the name of a segment."""

ATTEMPTS: Final[tuple[Attempt, ...]] = (
    lambda segment: pb.CommandProducer(
        topic=segment, producer_id=0, request_id=1, producer_name="producer-0"
    ),
    lambda segment: pb.CommandSubscribe(
        topic=segment,
        subscription=STREAM,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=0,
        request_id=1,
        durable=True,
    ),
    lambda segment: pb.CommandScalableTopicSubscribe(
        topic=str(TOPIC),
        subscription=STREAM,
        consumer_name="stream-0",
        consumer_id=0,
        request_id=1,
        consumer_type=pb.STREAM,
    ),
    lambda segment: pb.CommandScalableTopicLookup(topic=str(TOPIC), session_id=1),
    lambda segment: pb.CommandLookupTopic(topic=segment, request_id=1),
    lambda segment: pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, request_id=1),
    lambda segment: pb.CommandPeerCall(request_id=1, target=f"leader {TOPIC}", verb="stop", arguments=b"[]"),
)


def guard_of(loop: SimLoop, shape: Shape) -> SimGuard | None:
    """The issuer of tokens; None if brokers ask for none."""
    if not shape.guarded:
        return None
    # A token that lives for a second would be refused behind a slow link, or by a clock an hour off.
    delays = shape.clock_jumps or shape.link_faults or shape.pauses or shape.consumer_pauses
    return SimGuard(SimClock(loop), math.inf if delays else shape.token_life_s)


class Roles:
    """Grants rights, withdraws them for a while, and lets intruders try what they may not do."""

    def __init__(self, clients: Clients, shape: Shape, found: list[str]) -> None:
        self._clients = clients
        self._shape = shape
        self._found = found

    async def start(self) -> None:
        """Grant the rights that clients need."""
        if self._shape.guarded:
            await self._grant(SENDER, READER)

    async def _grant(self, *roles: str) -> None:
        """Let exactly these roles do what GRANTS says."""
        policies = {"auth_policies": {"namespace_auth": {role: list(GRANTS[role]) for role in roles}}}

        def change(record: NamespaceRecord) -> NamespaceRecord:
            return msgspec.structs.replace(record, policies={**record.policies, **policies})

        async def store(broker: Broker) -> bool:
            await broker.records.namespaces.update_namespace(NAMESPACE, change)
            return True

        while True:
            with suppress(AnabranchError):
                if await self._clients.cluster.in_broker(store):
                    return
            await asyncio.sleep(0.1)

    async def run(self) -> None:
        """Return when every intruder was refused, and all rights are granted."""
        await asyncio.gather(self._withdraw(), self._intrude())

    async def _withdraw(self) -> None:
        rng = self._clients.cluster.loop.random("revocations")
        for _ in range(self._shape.revocations):
            await asyncio.sleep(rng.uniform(0, self._shape.busy_s))
            await self._grant(rng.choice((SENDER, READER)))
            self._clients.counts["right withdrawn"] += 1
            await asyncio.sleep(rng.uniform(*WITHDRAWN_S))
            await self._grant(SENDER, READER)
            await asyncio.sleep(LATE_S)

    async def _intrude(self) -> None:
        rng = self._clients.cluster.loop.random("intruders")
        for number in range(self._shape.intruders):
            await asyncio.sleep(rng.uniform(0, self._shape.busy_s / self._shape.intruders))
            process = self._clients.process(f"{INTRUDER}-{number}")
            host = rng.choice(self._clients.cluster.hosts).name
            with suppress(AnabranchError, TimeoutError):
                await process.spawn(self._try_all(process, host))

    async def _try_all(self, process: SimProcess, host: str) -> None:
        """Try everything at one broker; any answer other than a refusal is a finding."""
        cluster = self._clients.cluster
        connection = WireUser()
        pump = await dial(host, PORT, self._machine, connection, timeout_s=PATIENCE_S)
        try:
            for segment in cluster.history.layouts[-1].active:
                name = str(TOPIC.segment_name(segment.range, segment.id))
                for attempt in ATTEMPTS:
                    command = attempt(name)
                    pump.write(encode(command))
                    answer: Any = await connection.take()
                    self._clients.counts["intruder refused"] += 1
                    if not _refuses(answer):
                        self._found.append(f"an intruder got {answer} for {command}")
        finally:
            pump.abort()

    def _machine(self) -> ClientMachine:
        return self._clients.cluster.machine(INTRUDER, INTRUDER)


def _refuses(answer: Any) -> bool:
    """Whether an answer is an error; during faults it may be another one than missing rights."""
    has_error = "error" in answer.DESCRIPTOR.fields_by_name
    return isinstance(answer, pb.CommandError) or (has_error and bool(answer.HasField("error")))
