"""A port as bytes: each verb of a Protocol, with its arguments and result written by their annotations.

A `Port` reads the annotations of its Protocol once, when it is built, so a new verb needs no code here. From
then on all sides are typed by the Protocol: `Port.proxy` is the Protocol for callers, and the object that
serves the port has to implement it. A verb that is a coroutine function is called and answered; a plain
function that returns None is sent as a notification. Verbs declare sessions (`controller/ports/verbs.py`):
the push function of a session stays at the caller, and the values it is called with travel. This module must
not know how bytes get from one broker to another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, get_args, get_type_hints

import msgspec

from anabranch import errors
from anabranch.controller.ports.verbs import EndsSession, OpensSession, VerbSession, session_role
from anabranch.errors import AnabranchError, LocalProtocolError, RemoteProtocolError, UnknownServerError

P = TypeVar("P")

Arguments = dict[str, Any]
PushFunction = Callable[[Any], None]


def _plain(value: Any) -> Any:
    """A mapping or sequence of another library as a dict or list."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise LocalProtocolError(f"a {type(value).__name__} cannot be sent to another broker")


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


class Verb:
    """One function of a port; all of its arguments have names."""

    def __init__(self, protocol: type, name: str) -> None:
        function = getattr(protocol, name)
        role = session_role(function)
        self.name = name
        self.answered = inspect.iscoroutinefunction(function)
        """Whether callers wait for the result."""
        self.opens = role if isinstance(role, OpensSession) else None
        self.ends = role if isinstance(role, EndsSession) else None
        self._lost = None if self.opens is None else Verb(protocol, self.opens.lost)
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._signature = inspect.Signature(parameters)
        if self.opens is not None:
            parameters = [parameter for parameter in parameters if parameter.name != self.opens.push]
            (pushed,), _ = get_args(hints[self.opens.push])
            self._push = _decoder(pushed)
        fields = [
            (one.name, hints[one.name], *(() if one.default is one.empty else (one.default,)))
            for one in parameters
        ]
        made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._arguments = _decoder(made)
        self._names = tuple(parameter.name for parameter in parameters)
        self._result = _decoder(hints["return"])

    def bind(self, *args: Any, **kwargs: Any) -> VerbCall:
        """A call of this verb; wrong arguments raise TypeError, as calling the function would."""
        return VerbCall(self, dict(self._signature.bind(*args, **kwargs).arguments))

    def loss_of(self, session: VerbSession) -> VerbCall:
        """The call that ends a session of this verb whose caller is gone."""
        assert self._lost is not None, f"{self.name} opens no session"
        return self._lost.bind(session)

    def encode_arguments(self, arguments: Arguments) -> bytes:
        return _ENCODER.encode({name: arguments[name] for name in self._names if name in arguments})

    def decode_arguments(self, data: bytes) -> Arguments:
        """Undo `encode_arguments`, with defaults for absent arguments; raises RemoteProtocolError."""
        found = _read(self._arguments, data, f"the arguments of {self.name}")
        return {name: getattr(found, name) for name in self._names}

    def decode_result(self, data: bytes) -> Any:
        return _read(self._result, data, f"the result of {self.name}")

    def decode_push(self, data: bytes) -> Any:
        return _read(self._push, data, f"a push of {self.name}")


@dataclass(frozen=True, slots=True)
class VerbCall:
    """A verb with its arguments by name."""

    verb: Verb
    arguments: Arguments

    @property
    def push(self) -> PushFunction | None:
        """The function that the called broker notifies during the session that this call opens."""
        opens = self.verb.opens
        return None if opens is None else self.arguments[opens.push]

    @property
    def session(self) -> VerbSession | None:
        """The session that this call ends."""
        ends = self.verb.ends
        return None if ends is None else self.arguments[ends.session]

    def invoke(self, served: object) -> Any:
        """Call the verb on the object that serves the port; a coroutine for an answered verb."""
        return getattr(served, self.verb.name)(**self.arguments)


class Carrier(Protocol):
    """Carries out the calls of a proxy."""

    async def call(self, call: VerbCall) -> Any: ...

    def notify(self, call: VerbCall) -> None: ...


class Port(Generic[P]):
    """The verbs of the Protocol `P`."""

    def __init__(self, protocol: type[P]) -> None:
        self.name = protocol.__name__
        self.verbs: Mapping[str, Verb] = {
            name: Verb(protocol, name)
            for name, function in vars(protocol).items()
            if _is_verb(name, function)
        }
        methods = {name: (_called if verb.answered else _notified)(verb) for name, verb in self.verbs.items()}
        self._proxy = type(f"{self.name}Proxy", (_Proxy,), methods)

    def verb(self, name: str) -> Verb:
        """The verb of that name; raises RemoteProtocolError, since only a peer of another version asks."""
        try:
            return self.verbs[name]
        except KeyError:
            raise RemoteProtocolError(f"{self.name} has no verb {name!r}") from None

    def proxy(self, carrier: Carrier, **local: Any) -> P:
        """Return an object with all verbs of the port, which `carrier` performs, and the members `local`."""
        made: P = self._proxy(carrier, local)
        return made


class _Proxy:
    def __init__(self, carrier: Carrier, local: Mapping[str, Any]) -> None:
        self.carrier = carrier
        vars(self).update(local)


def _is_verb(name: str, function: Any) -> bool:
    if name.startswith("_") or not inspect.isfunction(function):
        return False
    return inspect.iscoroutinefunction(function) or get_type_hints(function)["return"] is type(None)


def _called(verb: Verb) -> Callable[..., Any]:
    async def method(self: _Proxy, *args: Any, **kwargs: Any) -> Any:
        return await self.carrier.call(verb.bind(*args, **kwargs))

    return method


def _notified(verb: Verb) -> Callable[..., Any]:
    def method(self: _Proxy, *args: Any, **kwargs: Any) -> None:
        self.carrier.notify(verb.bind(*args, **kwargs))

    return method


def encode_value(value: Any) -> bytes:
    """The bytes of a result or a pushed value."""
    return _ENCODER.encode(value)


def error_named(name: str, text: str) -> AnabranchError:
    """The error that a peer raised, as its own class."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, AnabranchError):
        return kind(text)
    return UnknownServerError(f"{name}: {text}")


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _read(decoder: msgspec.msgpack.Decoder[Any], data: bytes, subject: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, AnabranchError) as error:
        raise RemoteProtocolError(f"{subject} cannot be read: {error}") from error
