"""A TLS context that follows its files: certificates are renewed while a process runs."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Sequence

from anabranch.errors import InvalidConfigurationError

log = logging.getLogger(__name__)


class FollowedContext:
    """A context that is made again when one of its files changes."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Sequence[str]) -> None:
        """Raise InvalidConfigurationError if the files cannot be used now."""
        self._make = make
        self._files = [file for file in files if file]
        self._seen = self._signature()
        self._current = make()

    def __call__(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        return self._current

    def refresh(self) -> bool:
        """Start to use changed files; return True if there is a new context. Broken files change nothing."""
        seen = self._signature()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._current = self._make()
        except InvalidConfigurationError as error:
            log.error("the changed TLS files cannot be used, so the previous ones stay in use: %s", error)
            return False
        log.info("new connections use the changed TLS files %s", ", ".join(self._files))
        return True

    def _signature(self) -> list[tuple[int, ...] | None]:
        return [file_stamp(file) for file in self._files]


def file_stamp(file: str) -> tuple[int, ...] | None:
    """Return a value that changes when the file is written or replaced; None while it cannot be read."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
