"""Asks credentials of any class for their proof, and turns every failure into an AuthenticationError."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from anabranch.credentials.authentication import Authentication
from anabranch.errors import (
    AnabranchError,
    AuthenticationError,
    CredentialsUnavailableError,
    InvalidConfigurationError,
)

T = TypeVar("T")

REFRESH: Final = b"PulsarAuthRefresh"
"""The challenge of a broker that wants fresh credentials because the previous ones expire."""


def checked_authentication(given: Authentication | None) -> Authentication | None:
    """Return the argument `authentication` of a client.

    Raise InvalidConfigurationError for an object that has no credentials.
    """
    if given is None or (
        isinstance(getattr(given, "method_name", None), str) and callable(getattr(given, "auth_data", None))
    ):
        return given
    raise InvalidConfigurationError(
        "authentication must be an AuthenticationToken, AuthenticationTLS, AuthenticationBasic, "
        "AuthenticationOauth2, or an object with method_name and auth_data(host)"
    )


async def proof(
    authentication: Authentication, host: str, timeout_s: float, challenge: bytes = REFRESH
) -> bytes:
    """Return fresh credentials for a broker, or the answer to its challenge; raises AuthenticationError."""
    respond = getattr(authentication, "respond", None)
    if challenge == REFRESH or respond is None:
        data: Any = await _asked(authentication, lambda: authentication.auth_data(host), timeout_s)
    else:
        data = await _asked(authentication, lambda: respond(challenge), timeout_s)
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes):
        raise AuthenticationError(f"{_kind(authentication)} returned credentials that are not bytes")
    return data


async def http_headers(authentication: Authentication, host: str, timeout_s: float) -> dict[str, str]:
    """Return the headers that prove the role in a request over HTTP."""
    headers = getattr(authentication, "http_headers", None)
    if headers is None:
        raise InvalidConfigurationError(
            f"{_kind(authentication)} cannot be used over HTTP; give it a coroutine http_headers(host)"
        )
    found: Mapping[str, str] = await _asked(authentication, lambda: headers(host), timeout_s)
    return dict(found)


def renew(authentication: Authentication) -> None:
    """Let the next credentials be new ones; those that are asked afresh each time need no such call."""
    forget = getattr(authentication, "renew", None)
    if forget is not None:
        forget()


async def close(authentication: Authentication, timeout_s: float) -> str | None:
    """End the credentials of a client that closes; returns the reason if that fails."""
    end = getattr(authentication, "close", None)
    if end is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            await end()
    except Exception as error:
        return f"{_kind(authentication)} was not closed: it raised {type(error).__name__}"
    return None


async def _asked(authentication: Authentication, ask: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await ask()
    except AnabranchError:
        raise
    except Exception as error:
        if limit.expired():
            raise CredentialsUnavailableError(
                f"{_kind(authentication)} gave no credentials within {timeout_s:g} s"
            ) from None
        # The text of a foreign error may contain a secret. Developers still find it in the traceback.
        raise AuthenticationError(
            f"{_kind(authentication)} gave no credentials: it raised {type(error).__name__}"
        ) from error


def _kind(authentication: Authentication) -> str:
    return type(authentication).__name__
