"""Requests to an issuer of tokens over HTTP, each in a thread of its own, so that no event loop waits.

The threads are daemons: an issuer that never answers does not keep a program from ending.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from anabranch.errors import AuthenticationError, CredentialsUnavailableError

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
"""Limit of each request, as a whole."""

ANSWER_BYTES_MAX: Final = 2**20

monotonic_s: Final = time.monotonic


@dataclass(frozen=True, slots=True)
class IssuerRequest:
    """A GET, or the POST of a form; `repr` does not show the form, which contains a secret."""

    url: str
    form: tuple[tuple[str, str], ...] | None = field(repr=False)
    trust_file: str | None = None
    """Certificates to trust instead of those of the system."""


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    body: bytes = field(repr=False)


async def fetch(request: IssuerRequest) -> Fetched:
    """Send a request; raises CredentialsUnavailableError when the issuer cannot be reached in time."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _in_thread(lambda: _exchange(request))
    except TimeoutError:
        raise CredentialsUnavailableError(
            f"the issuer at {request.url} did not answer within {TIMEOUT_S:g} s"
        ) from None


def _exchange(request: IssuerRequest) -> Fetched:
    parts = urlsplit(request.url)
    connection: http.client.HTTPConnection
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = _trust(request.trust_file)
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    headers = {"Accept": "application/json"}
    try:
        if request.form is None:
            connection.request("GET", target, headers=headers)
        else:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request("POST", target, body=urlencode(request.form), headers=headers)
        response = connection.getresponse()
        return Fetched(response.status, response.read(ANSWER_BYTES_MAX))
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"the certificate of the issuer at {request.url} is not trusted: {error.verify_message}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise CredentialsUnavailableError(f"cannot reach the issuer at {request.url}: {error}") from error
    finally:
        connection.close()


def _trust(trust_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=trust_file)
    except OSError as error:
        raise AuthenticationError(
            f"cannot read the certificates in {trust_file}: {error.strerror}"
        ) from error


def wait_for(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from blocking code, also from a thread whose event loop runs."""
    if asyncio._get_running_loop() is None:
        return asyncio.run(work())
    ended: list[tuple[T | None, BaseException | None]] = []
    thread = threading.Thread(target=lambda: ended.append(_outcome(lambda: asyncio.run(work()))))
    thread.start()
    thread.join()
    ((result, error),) = ended
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error


async def _in_thread(work: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def report(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = _outcome(work)
        try:
            loop.call_soon_threadsafe(report, result, error)
        except RuntimeError:
            # The loop was closed meanwhile, and with it the caller.
            return

    threading.Thread(target=run, name="anabranch credentials", daemon=True).start()
    return await done
