"""The machine, as authentication needs it: threads, randomness, and documents of issuers over HTTP."""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from anabranch.errors import CredentialsUnavailableError

T = TypeVar("T")

DOCUMENT_BYTES_MAX: Final = 2**20

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the document of a URL; raises CredentialsUnavailableError."""


class Offload(Protocol):
    """Runs work that would hold the event loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Outside:
    """The port to the machine; tests have their own."""

    fetch: Fetch
    run_aside: Offload = in_thread
    random_bytes: Callable[[int], bytes] = os.urandom

    @classmethod
    def of_this_machine(cls, trust_certs_file: str = "", timeout_s: float = 10.0) -> Outside:
        return cls(HttpFetch(trust_certs_file, timeout_s))


class HttpFetch:
    """Fetches documents in a thread, from exactly the given URL, within a time and a size."""

    def __init__(self, trust_certs_file: str, timeout_s: float) -> None:
        self._trusted = trust_certs_file
        self._timeout_s = timeout_s

    async def __call__(self, url: str) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(self._get, url)
        except TimeoutError:
            raise CredentialsUnavailableError(f"{url} did not answer in {self._timeout_s:g} s") from None
        except (OSError, ValueError, urllib.error.URLError) as error:
            raise CredentialsUnavailableError(f"{url} cannot be read: {error}") from None

    def _get(self, url: str) -> bytes:
        if not url.startswith(("https://", "http://")):
            raise ValueError("only http and https URLs are read")
        context = ssl.create_default_context(cafile=self._trusted or None)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with opener.open(request, timeout=self._timeout_s) as answer:
            data: bytes = answer.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead to another host or to http."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
