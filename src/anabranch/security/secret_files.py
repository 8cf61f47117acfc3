"""Keys and passwords that the configuration refers to: read once, and again when their file changes."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from anabranch.errors import InvalidConfigurationError
from anabranch.transport.followed_context import file_stamp

_logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_S: Final = 1.0
"""A file is checked for changes after this long, when its value is used."""
FILE_BYTES_MAX: Final = 16 * 2**20


class Watched(Generic[T]):
    """The value that a setting refers to: `data:;base64,...`, `file:///path`, or a path."""

    def __init__(
        self, setting: str, source: str, parse: Callable[[bytes], T], now_s: Callable[[], float]
    ) -> None:
        """Raises InvalidConfigurationError if the value cannot be read now; later it keeps the last one."""
        self._setting = setting
        self._path = _path_of(setting, source)
        self._parse = parse
        self._now_s = now_s
        self._checked_s = now_s()
        self._seen = self._stamp()
        data = _decode_data_url(setting, source) if self._path is None else self._read()
        self._value = self._parse(data)

    def value(self) -> T:
        now_s = self._now_s()
        # A wall clock that was set back must not stop the checks.
        if self._path is not None and not 0 <= now_s - self._checked_s < CHECK_S:
            self._checked_s = now_s
            seen = self._stamp()
            if seen != self._seen:
                self._seen = seen
                self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            self._value = self._parse(self._read())
            _logger.info("%s was read again, because %s changed", self._setting, self._path)
        except InvalidConfigurationError as error:
            _logger.error("%s keeps its previous value: %s", self._setting, error)

    def _read(self) -> bytes:
        assert self._path is not None
        try:
            with open(self._path, "rb") as stream:
                return stream.read(FILE_BYTES_MAX)
        except OSError as error:
            raise InvalidConfigurationError(
                f"setting {self._setting}: cannot read {self._path}: {error.strerror}"
            ) from error

    def _stamp(self) -> tuple[int, ...] | None:
        return None if self._path is None else file_stamp(self._path)


def _path_of(setting: str, source: str) -> str | None:
    if source.startswith("data:"):
        return None
    if not source.startswith("file:"):
        return source
    parts = urlsplit(source)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidConfigurationError(f"setting {setting}: write a file as file:///path")
    return unquote(parts.path)


def _decode_data_url(setting: str, source: str) -> bytes:
    head, comma, text = source.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidConfigurationError(f"setting {setting}: write data as data:;base64,...")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidConfigurationError(f"setting {setting}: the data is not base64") from None
