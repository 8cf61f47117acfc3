"""End-to-end encryption as applications choose it: keys, key readers, and the policies for failures.

The formats are those of Pulsar's clients: AES-256-GCM for payloads, and a data key that is wrapped for each
recipient by RSA-OAEP. Brokers see only the metadata of entries, and never a key that opens a payload.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from anabranch.arguments import listed, number_of, of_kind, refused
from anabranch.client.entropy import in_thread
from anabranch.errors import AnabranchError, InvalidConfigurationError


class EncryptionKeyError(AnabranchError):
    """A key for end-to-end encryption is missing, unreadable or of a kind that is not supported."""


class DecryptionError(AnabranchError):
    """An entry cannot be decrypted with the available keys; `message_id` means all of it."""

    def __init__(self, text: str, topic: str = "", message_id: Any = None) -> None:
        super().__init__(text)
        self.topic, self.message_id = topic, message_id


class EncryptionKey(NamedTuple):
    """A key in PEM form with text about it, such as its version, which its recipients' key readers get.

    Example:
        def read_key(name: str, metadata: dict[str, str]) -> EncryptionKey:
            with open(f"{name}-v2.pem", "rb") as file:
                return EncryptionKey(file.read(), {"version": "2"})
    """

    pem: bytes
    metadata: Mapping[str, str] = {}


KeyReader = Callable[
    [str, Mapping[str, str]], bytes | EncryptionKey | Awaitable[bytes | EncryptionKey | None] | None
]
"""Returns the key of a name in PEM form; None means that there is none. A plain function gets a thread."""


class PemFiles:
    """Reads keys from PEM files, afresh each time: one file for all names, or one for each.

    Example:
        reader = PemFiles({"orders": "orders-public.pem", "audit": "audit-public.pem"})
    """

    def __init__(self, files: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]) -> None:
        paths = list(files.values()) if isinstance(files, Mapping) else [files]
        for path in paths:
            of_kind("files", path, (str, os.PathLike), "a path, or paths by the names of keys")
        self._files = files if isinstance(files, Mapping) else Path(files)

    def __call__(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        """The content of the file for a key; None if no file belongs to the name."""
        file = self._files.get(name) if isinstance(self._files, Mapping) else self._files
        return None if file is None else Path(file).read_bytes()


@dataclass(frozen=True)
class Encrypt:
    """Lets a producer encrypt its messages for the holders of the private keys of `names`.

    `keys` reads public keys. The data key is replaced after `rotate_after`; if the public keys cannot be read
    then, the former one stays in use and the next attempt follows a minute later. When a producer opens
    without its keys, "fail" raises EncryptionKeyError, and "send" sends readable messages until it has them.

    Example:
        encryption = Encrypt(["billing", "audit"], PemFiles({"billing": "billing.pem", "audit": "audit.pem"}))
        # client.create_producer("vault", encryption=encryption)
        assert encryption.key_names == ("billing", "audit")
    """

    names: str | Sequence[str]
    keys: KeyReader
    on_failure: Literal["fail", "send"] = "fail"
    rotate_after: float | timedelta = 4 * 3600.0

    def __post_init__(self) -> None:
        _check("on_failure", self.on_failure, ("fail", "send"))
        if not isinstance(self.names, str):
            listed("names", self.names, str, "the name of a key, or a list of names")
        if not all(self.key_names) or not self.key_names:
            raise InvalidConfigurationError("encryption needs the name of at least one key")
        if not callable(self.keys):
            raise InvalidConfigurationError("keys must be PemFiles or a function of a name and metadata")
        if not self.rotate_after_s > 0:
            raise refused("rotate_after", "a positive number of seconds", self.rotate_after)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names without repetitions."""
        return tuple(dict.fromkeys((self.names,) if isinstance(self.names, str) else self.names))

    @property
    def rotate_after_s(self) -> float:
        """Seconds after which a producer makes a new data key."""
        return number_of(self.rotate_after)


@dataclass(frozen=True)
class Decrypt:
    """Lets a consumer read encrypted messages; `keys` reads private keys. Readable messages need none.

    An entry that cannot be decrypted makes `receive` raise DecryptionError with "fail", the default: it keeps
    its place, and the next `receive` asks for the key again. "discard" acknowledges and skips it. "consume"
    hands it out as one message whose `data` is encrypted and whose `encryption` says how.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            encryption = Decrypt(PemFiles("billing-private.pem"))
            consumer = client.subscribe_stream("vault", "billing", encryption=encryption)
    """

    keys: KeyReader | None = None
    on_failure: Literal["fail", "discard", "consume"] = field(default="fail")

    def __post_init__(self) -> None:
        _check("on_failure", self.on_failure, ("fail", "discard", "consume"))
        if self.keys is None and self.on_failure != "consume":
            raise InvalidConfigurationError('only on_failure="consume" works without keys')
        if self.keys is not None and not callable(self.keys):
            raise InvalidConfigurationError("keys must be PemFiles or a function of a name and metadata")


def _check(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfigurationError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


async def read_key(
    reader: KeyReader, name: str, metadata: Mapping[str, str], timeout_s: float
) -> EncryptionKey:
    """The key that a reader returns; every failure is an EncryptionKeyError."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            found = await _asked(reader, name, metadata)
    except Exception as error:
        if limit.expired():
            raise EncryptionKeyError(f"the key {name} was not read within {timeout_s:g} s") from None
        # The text of a foreign error may contain a secret; its traceback is there for the developer.
        reason = type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise EncryptionKeyError(f"the key {name} was not read: {reason}") from error
    if found is None:
        raise EncryptionKeyError(f"the key reader has no key {name}")
    key = found if isinstance(found, EncryptionKey) else EncryptionKey(found)
    if not isinstance(key.pem, bytes):
        raise EncryptionKeyError(f"the key reader returned a key {name} that is not bytes")
    return key


async def _asked(reader: KeyReader, name: str, metadata: Mapping[str, str]) -> bytes | EncryptionKey | None:
    called: Any = getattr(reader, "__call__", reader)  # noqa: B004 - an object with an asynchronous call
    if inspect.iscoroutinefunction(reader) or inspect.iscoroutinefunction(called):
        found: Any = reader(name, metadata)
    else:
        found = await in_thread(reader, name, metadata)
    return cast(bytes | EncryptionKey | None, await found if inspect.isawaitable(found) else found)
