"""Messages of producers that have interceptors, from the call of the application to the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, TypeVar

from anabranch.client.decide.producing.outgoing import Extras, Outgoing
from anabranch.client.interceptors import InterceptorChain, SentMessage
from anabranch.client.produce.futures import message_id
from anabranch.client.produce.preparing import Keys, Prepared, PreparedMany, Preparing
from anabranch.client.schema import Codec
from anabranch.clock import Clock, moment
from anabranch.errors import AnabranchError

T = TypeVar("T")


class ReceiptReport:
    """Tells interceptors the outcome of one message, once."""

    def __init__(self, chain: InterceptorChain, message: SentMessage) -> None:
        self._chain = chain
        self._message = message
        self.placed = False
        """Whether the message is in a batch, which reports its outcome."""

    def settle(self, batch: Outgoing, index: int) -> None:
        """Take the outcome from the batch."""
        if batch.error is None:
            self._chain.settled(self._message, message_id(batch, index), None)
        else:
            self._chain.settled(self._message, None, batch.error)

    def give_up(self, error: BaseException) -> None:
        """Take the error that kept the message out of any batch."""
        if not self.placed:
            self.placed = True
            self._chain.settled(self._message, None, error)


class InterceptedPreparing(Preparing[T]):
    """Lets the interceptors see each message behind the checks of its arguments."""

    def __init__(
        self, schema: Codec[T], clock: Clock, chain: InterceptorChain, topic: str, name: str
    ) -> None:
        super().__init__(schema, clock)
        self._chain, self._topic, self._name = chain, topic, name

    def one(self, value: T | None, key: str | bytes | None, *more: Any, **named: Any) -> Prepared:
        data, key, extras, sequence_id = super().one(value, key, *more, **named)
        return data, key, self._seen(value, key, data, extras or Extras()), sequence_id

    def many(self, values: Sequence[T], keys: Keys | None) -> PreparedMany:
        datas, keys, _ = super().many(values, keys)
        rows = zip(values, keys if keys is not None else repeat(None), datas, strict=False)
        return datas, keys, [self._seen(value, key, data, Extras()) for value, key, data in rows]

    def _seen(self, value: T | None, key: str | bytes | None, data: bytes, extras: Extras) -> Extras:
        event_time = moment(extras.event_time_ms) if extras.event_time_ms else None
        properties = dict(extras.properties or {})
        message = SentMessage(self._topic, value, key, properties, event_time, self._name, len(data))
        self._chain.before_send(message)
        report = ReceiptReport(self._chain, message)
        return extras._replace(properties=message.properties or None, report=report)


def preparing_for(
    schema: Codec[T], clock: Clock, chain: InterceptorChain | None, topic: str, name: str
) -> Preparing[T]:
    """Return the object that prepares the messages of a producer with these interceptors, or with none."""
    if chain is None:
        return Preparing(schema, clock)
    return InterceptedPreparing(schema, clock, chain, topic, name)


def give_up(extras: Iterable[Extras | None] | None, error: BaseException | None) -> None:
    """Report messages that are in no batch, because the producer took no more of them."""
    for one in extras or ():
        if one is not None and one.report is not None:
            one.report.give_up(error or AnabranchError("an earlier message of the same call failed"))
