"""The function for a command, the parts of a broker that it calls, and the answer to its failure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import Message

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.peers import ClusterSecret, Targets
from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.metadata.topics import TopicStore
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

if TYPE_CHECKING:
    from anabranch.broker.wire.connection import ServerConnection


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a broker that handlers call."""

    config: BrokerConfig
    clock: Clock
    tasks: TaskRegistry
    records: TopicStore
    logs: ServedLogs
    classic: ClassicTopics
    controllers: ControllerService
    schemas: SchemaRegistry
    directory: Directory
    lease: BrokerLease
    secret: ClusterSecret
    targets: Targets
    """The ports that other brokers may call at this broker."""
    _name_numbers: Iterator[int] = field(default_factory=count)

    def make_producer_name(self) -> str:
        """A name that no producer of this cluster ever had."""
        return f"{self.config.cluster}-{self.lease.me.generation}-{next(self._name_numbers)}"


def refuse_plainly(connection: ServerConnection, command: Message, error: Exception) -> None:
    """Answer a command that has a request id with ERROR; other commands get no answer."""
    request_id = getattr(command, "request_id", None)
    if request_id is not None:
        connection.send(pb.CommandError(request_id=request_id, error=code_for(error), message=str(error)))


Refusal = Callable[["ServerConnection", Any, Exception], None]


def refuse_with(response: type[Message], /, *echoed: str, **fixed: Any) -> Refusal:
    """Answer an error in the response of the command, which repeats the `echoed` fields of the command."""
    error_fields = "error_code" in response.DESCRIPTOR.fields_by_name
    code, text = ("error_code", "error_message") if error_fields else ("error", "message")

    def refuse(connection: ServerConnection, command: Any, error: Exception) -> None:
        repeated = {name: getattr(command, name) for name in echoed or ("request_id",)}
        connection.send(response(**repeated, **fixed, **{code: code_for(error), text: str(error)}))

    return refuse


class CommandHandler(NamedTuple):
    """The functions for one type of command."""

    act: Callable[[ServerConnection, Any], Coroutine[Any, Any, None] | None]
    refuse: Refusal = refuse_plainly
