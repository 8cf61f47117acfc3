"""Makes messages for `App.bench` as a consumer would hand them out, without a broker."""

from __future__ import annotations

from typing import Any

from anabranch.client.decide.producing.outgoing import Extras
from anabranch.client.message import Message
from anabranch.client.produce.preparing import Prepared
from anabranch.client.received import Received
from anabranch.client.schema import Codec
from anabranch.model.ids import MessageId
from anabranch.protocol.commands import Delivery
from anabranch.protocol.singles import build_single


def message_without_broker(
    topic: str, schema: Codec[Any], prepared: Prepared, number: int, now_ms: int
) -> Message[Any]:
    """Return a message in an entry of its own, with this number in the log of the bench."""
    data, key, extras, _ = prepared
    rare = extras or Extras()
    entry = build_single(
        data,
        key,
        number,
        "bench",
        now_ms,
        properties=rare.properties,
        event_time_ms=rare.event_time_ms,
        null_value=rare.null_value,
    )
    delivery = Delivery(1, 1, number, -1, 0, (), None, None, None, entry)
    return Message(Received(_BenchSource(topic, schema), delivery), 0, number)


class _BenchSource:
    """Stands for the segment and the consumer of a bench message."""

    segment_id = 0
    subscription: str | None = None
    closed = False

    def __init__(self, topic: str, schema: Codec[Any]) -> None:
        self.topic = self.given_topic = topic
        self.schema = schema
        self.owner = self.handed_out_by = self

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        return ()
