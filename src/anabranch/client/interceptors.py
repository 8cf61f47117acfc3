"""Interceptors: code of applications that sees the messages of producers and consumers on their way.

The chain calls the interceptors of one producer or consumer in the order in which they were given. An
interceptor that raises is logged once for each of its methods; its message goes on unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from anabranch.arguments import listed
from anabranch.model.ids import MessageId

if TYPE_CHECKING:
    from anabranch.client.message import Message

log = logging.getLogger("anabranch.client")


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message before it is sent; an interceptor may change its properties, and keep notes for itself.

    Example:
        message = SentMessage("topic://public/default/orders", b"one tea", key="alice")
        message.properties["shop"] = "north"
    """

    topic: str
    value: Any
    key: str | bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    event_time: datetime | None = None
    producer_name: str = ""
    size: int = 0
    """Bytes of the encoded value."""
    notes: dict[str, Any] = field(default_factory=dict)
    """For interceptors, from `before_send` to `on_receipt`; not sent."""


class Interceptor:
    """Override the methods that you need; give it to a client, a producer or a consumer.

    The methods are called on the event loop and must not block; `before_send` of a blocking producer is
    called in the thread of its caller. A method that raises changes nothing for the message.

    Example:
        class Shop(Interceptor):
            def before_send(self, message: SentMessage) -> None:
                message.properties["shop"] = "north"

            def on_acknowledge(self, message: Message[bytes] | MessageId) -> None:
                print("done with", message)

        with Client("pulsar://127.0.0.1:6650", interceptors=[Shop()]) as client:
            client.create_producer("orders").send(b"one tea", key="alice")
            consumer = client.subscribe_queue("orders", "shops", initial_position="earliest")
            message = consumer.receive(timeout=10)
            assert message.properties["shop"] == "north"
            consumer.acknowledge(message)
    """

    def before_send(self, message: SentMessage) -> None:
        """Called for each message after its arguments are checked, and before it gets its place."""

    def on_receipt(
        self, message: SentMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        """Called when the broker has stored a message, with its id, or with the error that ended it."""

    def on_receive(self, message: Message[Any]) -> None:
        """Called for each message of an entry before the first of them reaches the application."""

    def handling(self, message: Message[Any]) -> AbstractContextManager[object]:
        """A context around the handler of a message in `run`; it sees the handler's exception."""
        return nullcontext()

    def on_acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Called when a message is acknowledged; a cumulative acknowledgement names its last message."""

    def on_negative_acknowledge(self, message: Message[Any] | MessageId, reason: str) -> None:
        """Called when a message is given back, and when its handler in `run` has failed."""

    def on_close(self, topic: str) -> None:
        """Called when a producer or consumer of a topic is closed."""


HOOKS: Final = tuple(name for name in vars(Interceptor) if not name.startswith("_"))


def checked_interceptors(given: Iterable[object]) -> tuple[Interceptor, ...]:
    """The interceptors; raises InvalidConfigurationError for another object."""
    return listed("interceptors", given, Interceptor, "a list of Interceptor objects")


class InterceptorChain:
    """The interceptors of one producer or consumer."""

    def __init__(self, members: Sequence[Interceptor]) -> None:
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(one, hook) for one in members if overrides(one, hook)] for hook in HOOKS
        }
        self._reported: set[tuple[int, str]] = set()
        self._closed = False

    @classmethod
    def of(cls, members: Sequence[Interceptor]) -> InterceptorChain | None:
        """The chain; None without interceptors, so that a message costs nothing more."""
        return cls(members) if members else None

    def before_send(self, message: SentMessage) -> None:
        for hook in self._hooks["before_send"]:
            kept = dict(message.properties)
            try:
                hook(message)
                _check_text(message.properties)
            except Exception as error:
                message.properties = kept
                self._report(hook, error)

    def settled(
        self, message: SentMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        self._call("on_receipt", message, message_id, error)

    @property
    def wants_received(self) -> bool:
        return bool(self._hooks["on_receive"])

    def received(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            self._call("on_receive", message)

    def acknowledged(self, message: Message[Any] | MessageId) -> None:
        self._call("on_acknowledge", message)

    def refused(self, message: Message[Any] | MessageId, reason: str) -> None:
        self._call("on_negative_acknowledge", message, reason)

    def closed(self, topic: str) -> None:
        """Called for each call of `close`; interceptors are told once."""
        if not self._closed:
            self._closed = True
            self._call("on_close", topic)

    def around(
        self, handler: Callable[[Message[Any]], Awaitable[object]]
    ) -> Callable[[Message[Any]], Awaitable[object]]:
        """The handler inside the contexts of the interceptors."""
        hooks = self._hooks["handling"]
        if not hooks:
            return handler

        async def handle(message: Message[Any]) -> None:
            with ExitStack() as stack:
                for hook in hooks:
                    stack.enter_context(self._guarded(hook, message))
                await handler(message)

        return handle

    @contextmanager
    def _guarded(self, hook: Callable[..., Any], message: Message[Any]) -> Iterator[None]:
        """The context of one interceptor, whose own errors do not reach the handler or the run."""
        inner = ExitStack()
        try:
            inner.enter_context(hook(message))
        except Exception as error:
            self._report(hook, error)
        try:
            yield
        except BaseException as failure:
            self._leave(hook, inner, failure)
            raise
        self._leave(hook, inner, None)

    def _leave(self, hook: Callable[..., Any], inner: ExitStack, failure: BaseException | None) -> None:
        try:
            inner.__exit__(
                type(failure) if failure else None, failure, getattr(failure, "__traceback__", None)
            )
        except BaseException as error:
            if error is not failure:
                self._report(hook, error)

    def _call(self, name: str, *arguments: object) -> None:
        for hook in self._hooks[name]:
            try:
                hook(*arguments)
            except Exception as error:
                self._report(hook, error)

    def _report(self, hook: Any, error: BaseException) -> None:
        place = id(hook.__self__), hook.__name__
        if place not in self._reported:
            self._reported.add(place)
            log.error(
                "%s of the interceptor %r failed; its message goes on, and later failures are not logged",
                hook.__name__,
                hook.__self__,
                exc_info=error,
            )


def overrides(member: Interceptor, hook: str) -> bool:
    """Whether an interceptor has a method of its own."""
    return getattr(type(member), hook) is not getattr(Interceptor, hook)


def _check_text(properties: object) -> None:
    if not isinstance(properties, dict) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in properties.items()
    ):
        raise TypeError(f"properties map text to text, not {properties!r}")
