"""Every exception Anabranch raises on purpose, as one tree.

Families follow what the caller can do: fix the call, try again, look elsewhere, or give up. `retryable`
says whether the same call may succeed later without a change. Where a builtin says the same thing it is a
base too, so `except TimeoutError` and `except LookupError` work as a Python user expects.
"""

from __future__ import annotations

from typing import ClassVar


class AnabranchError(Exception):
    """Root of everything raised on purpose."""

    retryable: ClassVar[bool] = False


def in_words(error: BaseException) -> str:
    """An error for people who do not see where it was raised."""
    return f"{type(error).__name__}: {error}"


# The caller's input is wrong.


class InvalidConfigurationError(AnabranchError, ValueError):
    """A setting or argument cannot be used; the text says which and what is allowed."""


class InvalidServiceUrlError(InvalidConfigurationError):
    """The service URL is not of the form pulsar://host:port."""


class InvalidNameError(InvalidConfigurationError):
    """A topic, subscription, tenant or namespace name breaks the naming rules."""


class MessageTooBigError(AnabranchError, ValueError):
    """The message exceeds the limit of the broker."""


class LayoutError(AnabranchError, ValueError):
    """A split, merge, rebucket or prune that the layout does not allow."""


# Something is not there, or already there.


class TopicNotFoundError(AnabranchError, LookupError):
    """The topic does not exist and may not be created."""


class TopicExistsError(AnabranchError):
    """A topic of this name exists already."""


class SegmentNotFoundError(AnabranchError, LookupError):
    """The layout has no segment with this id."""


class SubscriptionNotFoundError(AnabranchError, LookupError):
    """The subscription does not exist and may not be created, or was deleted while it was open."""


class ConsumerNotFoundError(AnabranchError, LookupError):
    """The consumer is not known on this connection."""


class NotFoundError(AnabranchError, LookupError):
    """A stored record, tenant or namespace does not exist."""


class ConflictError(AnabranchError):
    """Another operation or another holder stands in the way."""


class HeldError(ConflictError):
    """Another process holds a lock; `holder` is the name it gave itself."""

    retryable = True

    def __init__(self, text: str, holder: str = "") -> None:
        super().__init__(text)
        self.holder = holder


class VersionConflictError(ConflictError):
    """A compare-and-set lost its race; load again, decide again."""

    retryable = True


# Connections and time.


class ConnectError(AnabranchError, ConnectionError):
    """No connection could be made."""

    retryable = True


class NotConnectedError(AnabranchError, ConnectionError):
    """The connection was lost while the call was under way."""

    retryable = True


class AlreadyClosedError(AnabranchError):
    """The object was closed."""


class OperationTimeoutError(AnabranchError, TimeoutError):
    """The operation was not answered in time."""

    retryable = True


class SendTimeoutError(OperationTimeoutError):
    """The message was not stored within the send timeout; it may still be stored."""


class ReceiveTimeoutError(AnabranchError, TimeoutError):
    """No message came within the timeout."""

    retryable = True


# Rights.


class AuthenticationError(AnabranchError, PermissionError):
    """The credentials were refused."""


class AuthorizationError(AnabranchError, PermissionError):
    """The role lacks the right for this operation."""


# Answers of a broker.


class ServerError(AnabranchError):
    """The broker refused the request; subclasses say why."""


class MetadataError(ServerError):
    """The metadata store failed or holds something unexpected."""

    retryable = True


class PersistenceError(ServerError):
    """The entry could not be made durable."""

    retryable = True


class ServiceNotReadyError(ServerError):
    """The broker cannot serve this yet; try again."""

    retryable = True


class TooManyRequestsError(ServerError):
    """A limit on open work was reached; try again later."""

    retryable = True


class UnknownServerError(ServerError):
    """The broker failed in a way it did not classify."""

    retryable = True


class NotAllowedError(ServerError):
    """The operation is not allowed here."""


class UnsupportedFeatureError(ServerError):
    """The peer does not know this feature."""


class QuotaExceededError(ServerError):
    """The backlog quota of the topic is used up."""

    retryable = True


class TopicTerminatedError(ServerError):
    """The topic or segment is sealed and takes no more messages."""


class ProducerBusyError(ServerError):
    """Another producer of this name, or an exclusive one, is connected."""


class ProducerFencedError(ServerError):
    """A newer exclusive producer took over."""


class ConsumerBusyError(ServerError):
    """The subscription is held in a way that excludes this consumer; it may be free later."""

    retryable = True


class ConsumerAssignError(ServerError):
    """The hash ranges asked for clash with those of another consumer."""

    retryable = True


class IncompatibleSchemaError(ServerError):
    """The schema does not fit the schema of the topic."""


class NotOwnerError(ServerError):
    """This broker does not own the segment; look up the owner and try there."""

    retryable = True


class NotLeaderError(ServerError):
    """This broker does not lead the topic; ask the leader."""

    retryable = True


class StaleTermError(ServerError):
    """A newer leader has acted; the effect of an older term is refused."""


# Local limits.


class MemoryBufferFullError(AnabranchError):
    """The client's memory limit for waiting messages is reached."""

    retryable = True


# Bytes.


class ProtocolError(AnabranchError):
    """The wire protocol was broken."""


class LocalProtocolError(ProtocolError):
    """This side tried to break the protocol; a bug here."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; the connection cannot go on."""


class ChecksumError(AnabranchError):
    """Bytes do not match their checksum."""


class CompressionError(AnabranchError):
    """A payload cannot be decompressed within its declared size."""


class CorruptDataError(AnabranchError):
    """Stored bytes are damaged; the segment stops rather than guess."""


class DataLossError(AnabranchError):
    """Messages that should be read are no longer stored."""
