"""The results and errors of admin calls as HTTP."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.responses import Response

from anabranch import errors
from anabranch.errors import AnabranchError, InvalidConfigurationError, TopicNotFoundError
from anabranch.schemas.schema_errors import InvalidSchemaError

log = logging.getLogger(__name__)


class MalformedBodyError(AnabranchError):
    """The body is not JSON, or JSON of another form; the text says which form is needed."""


class PreconditionFailedError(AnabranchError):
    """The resource is in a state that does not allow the call; the text says what to do first."""


# The first match decides, so narrower classes come before their bases.
_STATUSES: tuple[tuple[type[AnabranchError], int], ...] = (
    (MalformedBodyError, 400),
    (InvalidSchemaError, 422),
    (errors.IncompatibleSchemaError, 409),
    (TopicNotFoundError, 404),
    (errors.SegmentNotFoundError, 404),
    (errors.SubscriptionNotFoundError, 404),
    (errors.NotFoundError, 404),
    (errors.TopicExistsError, 409),
    (errors.ConflictError, 409),
    (errors.ConsumerBusyError, 412),
    (PreconditionFailedError, 412),
    (InvalidConfigurationError, 412),
    (errors.LayoutError, 412),
    (errors.LimitExceededError, 412),
    (errors.NotAllowedError, 405),
    (errors.AuthenticationError, 401),
    (errors.AuthorizationError, 403),
    (errors.TooManyRequestsError, 429),
    (errors.UnsupportedFeatureError, 501),
    (errors.AlreadyClosedError, 503),
)


def status_of(error: BaseException) -> int:
    """Return the HTTP status that tells a client how to react to the error."""
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return 503 if isinstance(error, AnabranchError) and error.retryable else 500


def render(answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, str):
        return Response(answer, media_type="text/plain; charset=utf-8")
    return as_json(answer)


def as_json(value: Any) -> Response:
    """Return the JSON of a value, also of a text, which `render` takes for plain text."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def refusal(error: BaseException, *, changing: bool = False) -> Response:
    """Return the HTTP form of an error; an unexpected error is logged, and its text is not sent.

    An unavailable leader may have made the requested change, and the text says so.
    """
    status = status_of(error)
    if not isinstance(error, AnabranchError):
        log.error("an admin call failed", exc_info=error)
        return reason(500, "the broker failed to answer this call; see its log")
    if changing and status == 503:
        return reason(
            status,
            f"{error}; the change may have been done, or may be done later: check before you repeat it",
        )
    return reason(status, str(error))


def reason(status: int, text: str) -> Response:
    """Return an error in Pulsar's JSON form."""
    body = msgspec.json.encode({"reason": text})
    return Response(body, status_code=status, media_type="application/json")
