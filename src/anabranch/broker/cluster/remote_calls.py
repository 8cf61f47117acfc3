"""A port as bytes: the verbs of a Protocol, with arguments and results written by their annotations.

What a Protocol declares as a coroutine can be called on another broker, and a plain function that returns
nothing is told to it; nothing has to be written for a new verb. An argument that is a function of one value
is told things later, and does not travel. Must not know how bytes get from one broker to another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import msgspec

from anabranch import errors
from anabranch.errors import AnabranchError, LocalProtocolError, RemoteProtocolError, UnknownServerError

Arguments = dict[str, Any]


def _plain(value: Any) -> Any:
    """Collections that are none of Python's own, as those that are."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise LocalProtocolError(f"a {type(value).__name__} cannot be sent to another broker")


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


class Push(NamedTuple):
    """An argument that is called later: its name, and what reads the value it is called with."""

    name: str
    decoder: msgspec.msgpack.Decoder[Any]


class Verb:
    """One function of a port; all of its arguments have names."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.told = not inspect.iscoroutinefunction(function)
        """Whether nobody waits for it."""
        self.push: Push | None = None
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        self.signature = inspect.Signature(parameters[1:])
        fields: list[Any] = []
        for parameter in parameters[1:]:
            kind = hints[parameter.name]
            if get_origin(kind) is Callable:
                self.push = Push(parameter.name, _decoder(get_args(kind)[0][0]))
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind, parameter.default))
        made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._arguments = _decoder(made)
        self._names = tuple(field[0] for field in fields)
        self._result = _decoder(hints["return"])

    def bind(self, *args: Any, **kwargs: Any) -> Arguments:
        """The arguments of a call by their names; a wrong call raises TypeError, as calling it would."""
        return dict(self.signature.bind(*args, **kwargs).arguments)

    def encode_arguments(self, arguments: Mapping[str, Any]) -> bytes:
        return _ENCODER.encode({name: arguments[name] for name in self._names if name in arguments})

    def decode_arguments(self, data: bytes) -> Arguments:
        """Undo `encode_arguments`, with defaults for what was left out; raises RemoteProtocolError."""
        found = _read(self._arguments, data, f"the arguments of {self.name}")
        return {name: getattr(found, name) for name in self._names}

    def encode_result(self, result: Any) -> bytes:
        return _ENCODER.encode(result)

    def decode_result(self, data: bytes) -> Any:
        return _read(self._result, data, f"the result of {self.name}")

    def decode_push(self, data: bytes) -> Any:
        assert self.push is not None, f"{self.name} has nothing to tell later"
        return _read(self.push.decoder, data, f"what {self.name} tells")


class Carrier(Protocol):
    """Who does the verbs of a proxy."""

    async def call(self, verb: Verb, arguments: Arguments) -> Any: ...

    def tell(self, verb: Verb, arguments: Arguments) -> None: ...


class Port:
    """The verbs of a Protocol."""

    def __init__(self, protocol: type) -> None:
        self.name = protocol.__name__
        self.verbs: Mapping[str, Verb] = {
            name: Verb(name, function)
            for name, function in vars(protocol).items()
            if _is_verb(name, function)
        }
        methods = {name: (_told if verb.told else _called)(verb) for name, verb in self.verbs.items()}
        self._proxy = type(f"{self.name}Proxy", (_Proxy,), methods)

    def verb(self, name: str) -> Verb:
        """The verb of that name; raises RemoteProtocolError, since only a peer of another version asks."""
        try:
            return self.verbs[name]
        except KeyError:
            raise RemoteProtocolError(f"{self.name} has no verb {name!r}") from None

    def proxy(self, carrier: Carrier) -> Any:
        """An object with all verbs of the port, each of them done by `carrier`."""
        return self._proxy(carrier)


class _Proxy:
    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier


def _is_verb(name: str, function: Any) -> bool:
    if name.startswith("_") or not inspect.isfunction(function):
        return False
    return inspect.iscoroutinefunction(function) or get_type_hints(function)["return"] is type(None)


def _called(verb: Verb) -> Callable[..., Any]:
    async def method(self: _Proxy, *args: Any, **kwargs: Any) -> Any:
        return await self.carrier.call(verb, verb.bind(*args, **kwargs))

    return method


def _told(verb: Verb) -> Callable[..., Any]:
    def method(self: _Proxy, *args: Any, **kwargs: Any) -> None:
        self.carrier.tell(verb, verb.bind(*args, **kwargs))

    return method


def encode_push(value: Any) -> bytes:
    """What a push carries."""
    return _ENCODER.encode(value)


def error_named(name: str, text: str) -> AnabranchError:
    """The error that a peer raised, as its own class."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, AnabranchError):
        return kind(text)
    return UnknownServerError(f"{name}: {text}")


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _read(decoder: msgspec.msgpack.Decoder[Any], data: bytes, what: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, AnabranchError) as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error}") from error
