"""Every workaround for the Java client 5.0.0-M1, the first V5 client of Apache Pulsar.

Remove this module, and the code that its callers guard with it, when clients of 5.0.0-M1 are no longer
supported. The client differs from ours in six ways:

- It ignores the bucket ranges of an assignment, so its members read segments only whole (`whole` in
  `RegistrationRequest` and `ConsumerRecord`); with one such member a group shares no segment by buckets.
- It gives up all of its segments when its first SUBSCRIBE of one is refused, so the broker lets its members
  attach before their turn (`admit` in controller/decide/admission.py) and waits for the former reader here.
- It loses an assignment that arrives while it attaches; the leader repeats the assignment (`remind`).
- It appends `-seg-` and the segment id to consumer names (`member_name` in controller/decide/admission.py).
- It does not register again after a CLOSE_CONSUMER; only the end of its connection makes it register again.
- It closes a layout session for good on an error that follows a layout.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from anabranch.broker.serving.context import ClientLink
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.broker.wire.attachments import Attached
from anabranch.broker.wire.services import Services
from anabranch.errors import AnabranchError
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb

VERSION = "Pulsar-Java-v5.0.0-M1"

HANDOVER_S = 20
"""How long a SUBSCRIBE waits for the former reader of a segment, which leaves within seconds if it lives."""


def is_java_m1(client_version: str) -> bool:
    return client_version.startswith(VERSION)


class KnownPeer(Protocol):
    """A connection that knows whose client it serves."""

    @property
    def peer_is_ours(self) -> bool: ...


def understands_ends(connection: KnownPeer) -> bool:
    """Whether the client recovers from the end of its registration, or of a topic whose layout it watches."""
    return connection.peer_is_ours


async def wait_for_former_reader(services: Services, attaching: Attached) -> bool:
    """Wait until no other consumer reads the segment; False when another member was assigned it meanwhile."""
    segment, subscription, consumer = attaching
    for _ in range(HANDOVER_S):
        if not subscription.consumers:
            return True
        with suppress(AnabranchError):
            # The former reader may have missed its new assignment. If there is no leader now, the next round
            # reminds it.
            controller = await services.controllers.controller(segment.name.topic)
            await controller.remind(subscription.name)
        if _only_finishes(subscription, consumer):
            break
        await subscription.departures.wait_until(lambda: not subscription.consumers, 1.0)
    return not (subscription.consumers and _only_finishes(subscription, consumer))


def _only_finishes(subscription: Subscription, consumer: ServedConsumer) -> bool:
    return subscription.reader_state(consumer, pb.CommandSubscribe.Exclusive) == "finishes"


def attach_and_close(connection: ClientLink, command: pb.CommandSubscribe) -> None:
    """Accept and close a consumer whose segment went to another member; its client repeats SUBSCRIBE."""
    connection.send(pb.CommandSuccess(request_id=command.request_id))
    connection.send(pb.CommandCloseConsumer(consumer_id=command.consumer_id, request_id=NO_ID))
