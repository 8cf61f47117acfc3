"""The body of an error, and bodies as plain JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.model.reports.body import Body

__all__ = ["Body", "ErrorBody", "plain"]


def plain(body: object) -> Any:
    """The JSON of a body, as dicts, lists, numbers and texts.

    Example:
        with AdminClient("http://127.0.0.1:8080") as admin:
            print(plain(admin.brokers())[0]["serviceUrl"])
    """
    return msgspec.to_builtins(body, str_keys=True)


class ErrorBody(Body, frozen=True, kw_only=True):
    """The answer to a call that failed."""

    reason: str
