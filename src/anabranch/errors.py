"""All exceptions of Anabranch, as one tree.

Families follow what the caller can do: fix the call, retry, ask another broker, or give up. `retryable` tells
whether the same call may succeed later. A builtin exception of the same meaning is a base (TimeoutError...).
"""

from __future__ import annotations

from typing import Any, ClassVar


class AnabranchError(Exception):
    """Root of all exceptions of Anabranch. Example: `assert not AnabranchError("refused").retryable`"""

    retryable: ClassVar[bool] = False


def in_words(error: BaseException) -> str:
    """Return the class and text of an error, for readers who do not see its traceback."""
    return f"{type(error).__name__}: {error}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 segment`, `2 segments` or `3 entries`."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


class InvalidConfigurationError(AnabranchError, ValueError):
    """A setting or argument is invalid; the text names it and the allowed values."""


class InvalidServiceUrlError(InvalidConfigurationError):
    """The service URL is not of the form pulsar://host:port."""


class InvalidNameError(InvalidConfigurationError):
    """A topic, subscription, tenant or namespace name breaks the naming rules."""


class MessageTooBigError(AnabranchError, ValueError):
    """The message exceeds the limit of the broker."""


class LayoutError(AnabranchError, ValueError):
    """The layout does not allow this split, merge, rebucket or prune."""


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
    """A stored record, tenant, namespace or lane does not exist."""


class ConflictError(AnabranchError):
    """Another operation or another process prevents this one."""


class HeldError(ConflictError):
    """Another process holds a lock; `holder` is the name of that process."""

    retryable = True

    def __init__(self, text: str, holder: str = "") -> None:
        super().__init__(text)
        self.holder = holder


class VersionConflictError(ConflictError):
    """A compare-and-set lost a race; load the record again and decide again."""

    retryable = True


class ConnectError(AnabranchError, ConnectionError):
    """No connection could be made."""

    retryable = True


class NotConnectedError(AnabranchError, ConnectionError):
    """The connection was lost during the call."""

    retryable = True


class AlreadyClosedError(AnabranchError):
    """The object was closed."""


class OperationTimeoutError(AnabranchError, TimeoutError):
    """The operation was not answered in time."""

    retryable = True


class UnreachableError(OperationTimeoutError, ConnectError):
    """No broker could be reached within the timeout; the text says which address failed and why."""


class SendTimeoutError(OperationTimeoutError):
    """The message was not stored within the send timeout; it may still be stored."""


class ReceiveTimeoutError(AnabranchError, TimeoutError):
    """No message came within the timeout."""

    retryable = True


class AuthenticationError(AnabranchError, PermissionError):
    """The credentials were refused."""


class CredentialsUnavailableError(AuthenticationError):
    """The issuer of the credentials cannot be reached or does not work; a later call may succeed."""

    retryable = True


class AuthorizationError(AnabranchError, PermissionError):
    """The role lacks the right for this operation."""


class ServerError(AnabranchError):
    """The broker refused the request; the subclass gives the reason."""


class MetadataError(ServerError):
    """The metadata store failed, or a record is invalid."""

    retryable = True


class DamagedRecordError(MetadataError):
    """A stored record changed since it was written; the record log has a second copy."""


class PersistenceError(ServerError):
    """The entry could not be made durable."""

    retryable = True


class ServiceNotReadyError(ServerError):
    """The broker cannot serve this request yet; retry."""

    retryable = True


class StorageFullError(ServiceNotReadyError):
    """The disk of the store is full, so it takes no entries; publishing goes on once there is room."""


class TooManyRequestsError(ServerError):
    """A limit on concurrent work was reached; retry later."""

    retryable = True


class UnknownServerError(ServerError):
    """The broker failed without a specific error code."""

    retryable = True


class NotAllowedError(ServerError):
    """The operation is not allowed here."""


class LimitExceededError(NotAllowedError):
    """A list, text, size or quota exceeds its limit; the error text names the limit."""


class UnsupportedFeatureError(ServerError):
    """The peer does not know this feature."""


class QuotaExceededError(ServerError):
    """The backlog quota of the topic is used up; producers wait until consumers have caught up."""

    retryable = True


class PublishRefusedError(ServerError):
    """The backlog quota of the topic is used up; messages are refused until consumers have caught up."""


class TopicTerminatedError(ServerError):
    """The topic or segment is sealed and takes no more messages."""


class ProducerBusyError(ServerError):
    """Another producer of this name, or an exclusive one, is connected."""


class ProducerFencedError(ServerError):
    """A newer exclusive producer replaced this one."""


class ConsumerBusyError(ServerError):
    """Other consumers hold the subscription and exclude this one; it may become free later."""

    retryable = True


class ConsumerAssignError(ServerError):
    """The requested hash ranges overlap those of another consumer."""

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
    """A newer leader has acted; changes of an older term are refused."""


class MemoryBufferFullError(AnabranchError):
    """The client's memory limit for waiting messages is reached."""

    retryable = True


class ProtocolError(AnabranchError):
    """A frame or command violates the wire protocol."""


class LocalProtocolError(ProtocolError):
    """This process would violate the protocol; a bug in Anabranch."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the connection has to be closed."""


class ChecksumError(AnabranchError):
    """Bytes do not match their checksum."""


class CompressionError(AnabranchError):
    """A payload cannot be decompressed within its declared size."""


class CorruptDataError(AnabranchError):
    """Stored bytes are damaged; the segment cannot be read past them."""


class DamagedEntriesError(CorruptDataError):
    """The entries from ordinal `first` up to, but not including, `end` are damaged; they held `messages`."""

    def __init__(self, text: str, first: int = 0, end: int = 0, messages: int = 0) -> None:
        super().__init__(text)
        self.first, self.end, self.messages = first, end, messages


class UnsupportedFormatError(AnabranchError):
    """The stored data has a format that this version does not read; start the version that wrote it."""


class BadEntryError(CorruptDataError):
    """A stored entry cannot be decoded; the next call continues after it. `message_id` names the entry."""

    def __init__(self, text: str, topic: str = "", message_id: Any = None) -> None:
        super().__init__(text)
        self.topic, self.message_id = topic, message_id


class MissingDataError(AnabranchError):
    """The metadata or files of a store are missing or belong to another store; restore a backup."""


class DataLossError(AnabranchError):
    """Messages that should be read are no longer stored."""
