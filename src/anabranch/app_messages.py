"""Messages of a bench: as a consumer hands them out, made without a broker."""

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
    """A message that is an entry of its own, the one with this number, in a log of the bench."""
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
    """The segment and the consumer of a message of a bench."""

    segment_id = 0

    def __init__(self, topic: str, schema: Codec[Any]) -> None:
        self.topic = self._given_topic = topic
        self.schema, self.home = schema, self

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        return ()
