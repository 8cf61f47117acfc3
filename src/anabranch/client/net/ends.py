"""The users of a connection, as the connection sees them: the receivers of commands with their ids."""

from __future__ import annotations

from typing import Any, Protocol

from anabranch.client.decide.producing.credits import ProducerCredit
from anabranch.protocol.commands import Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb


class ProducerEnd(Protocol):
    """A producer as the connection sees it: the receiver of commands with its producer id."""

    credit: ProducerCredit

    def receipt(self, receipt: SendReceipt) -> None: ...
    def credited(self) -> None:
        """The broker has changed the limits of `credit`."""

    def send_error(self, error: pb.CommandSendError) -> None: ...
    def closed_by_broker(self, *, sealed: bool = False) -> None:
        """`sealed`: the segment is sealed and has stored no entry without a receipt."""

    def connection_lost(self) -> None: ...


class ConsumerEnd(Protocol):
    """A consumer as the connection sees it: the receiver of commands with its consumer id."""

    def delivered(self, delivery: Delivery) -> None: ...
    def reached_end(self) -> None: ...
    def active_changed(self, active: bool) -> None:
        """In a Failover subscription: this consumer gets the messages from now on, or another one does."""

    def closed_by_broker(self) -> None: ...
    def connection_lost(self) -> None: ...


class WatchEnd(Protocol):
    """A layout watch or a registration as the connection sees it: the receiver of pushed updates."""

    def updated(self, update: Any) -> None: ...
    def connection_lost(self) -> None: ...
