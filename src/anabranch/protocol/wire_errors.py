"""The table that maps Anabranch's exceptions to the error codes of the wire, and back.

A code decides how other clients react (retry, give up, reconnect), so an exception maps to the code with the
right reaction, not to the code with the nearest name.
"""

from __future__ import annotations

from typing import Final

from anabranch import errors
from anabranch.protocol.entry.encryption import EncryptionRequiredError
from anabranch.protocol.pb import pulsar_pb2 as pb

_EXCEPTION_OF_CODE: Final[dict[int, type[errors.AnabranchError]]] = {
    pb.UnknownError: errors.UnknownServerError,
    pb.MetadataError: errors.MetadataError,
    pb.PersistenceError: errors.PersistenceError,
    pb.AuthenticationError: errors.AuthenticationError,
    pb.AuthorizationError: errors.AuthorizationError,
    pb.ConsumerBusy: errors.ConsumerBusyError,
    pb.ServiceNotReady: errors.ServiceNotReadyError,
    pb.ProducerBlockedQuotaExceededError: errors.QuotaExceededError,
    pb.ProducerBlockedQuotaExceededException: errors.PublishRefusedError,
    pb.ChecksumError: errors.ChecksumError,
    pb.UnsupportedVersionError: errors.UnsupportedFeatureError,
    pb.TopicNotFound: errors.TopicNotFoundError,
    pb.SubscriptionNotFound: errors.SubscriptionNotFoundError,
    pb.ConsumerNotFound: errors.ConsumerNotFoundError,
    pb.TooManyRequests: errors.TooManyRequestsError,
    pb.TopicTerminatedError: errors.TopicTerminatedError,
    pb.ProducerBusy: errors.ProducerBusyError,
    pb.InvalidTopicName: errors.InvalidNameError,
    pb.IncompatibleSchema: errors.IncompatibleSchemaError,
    pb.ConsumerAssignError: errors.ConsumerAssignError,
    pb.TransactionCoordinatorNotFound: errors.ServiceNotReadyError,
    pb.NotAllowedError: errors.NotAllowedError,
    pb.InvalidTxnStatus: errors.NotAllowedError,
    pb.TransactionConflict: errors.ConflictError,
    pb.TransactionNotFound: errors.NotFoundError,
    pb.ProducerFenced: errors.ProducerFencedError,
}

_CODE_OF_EXCEPTION: Final[dict[type[BaseException], int]] = {
    # The inverse of the table above; if several codes share an exception, the first one is used.
    **{exception: code for code, exception in reversed(_EXCEPTION_OF_CODE.items())},
    errors.NotAllowedError: pb.NotAllowedError,
    # Exceptions without a code of their own. A peer retries 1, 2 and 6, and gives up on 11 and 22.
    errors.VersionConflictError: pb.MetadataError,
    EncryptionRequiredError: pb.MetadataError,
    errors.CorruptDataError: pb.PersistenceError,
    errors.DataLossError: pb.PersistenceError,
    errors.HeldError: pb.ServiceNotReady,
    errors.NotOwnerError: pb.ServiceNotReady,
    errors.NotLeaderError: pb.ServiceNotReady,
    errors.StaleTermError: pb.ServiceNotReady,
    errors.ConnectError: pb.ServiceNotReady,
    errors.NotConnectedError: pb.ServiceNotReady,
    errors.AlreadyClosedError: pb.ServiceNotReady,
    errors.MemoryBufferFullError: pb.TooManyRequests,
    errors.SegmentNotFoundError: pb.TopicNotFound,
    errors.NotFoundError: pb.TopicNotFound,
    errors.InvalidConfigurationError: pb.NotAllowedError,
    errors.MessageTooBigError: pb.NotAllowedError,
    errors.LayoutError: pb.NotAllowedError,
    errors.TopicExistsError: pb.NotAllowedError,
    errors.ConflictError: pb.NotAllowedError,
    errors.CredentialsUnavailableError: pb.ServiceNotReady,
    TimeoutError: pb.ServiceNotReady,
}

_CPP_CLIENTS: Final = "Pulsar-CPP-"
"""The beginning of the version of the C++ client, and of the Python and Node.js clients built on it."""

ENCRYPTION_REQUIRED: Final = "Encryption is required in "
"""The start of the refusal of a producer without encryption. Pulsar has no code for this refusal: it shares
the code of a metadata store that fails, which may succeed later."""


def code_for(error: BaseException) -> pb.ServerError.ValueType:
    """Return the code of the exception's nearest base class in the table, else UnknownError."""
    for kind in type(error).__mro__:
        code = _CODE_OF_EXCEPTION.get(kind)
        if code is not None:
            return pb.ServerError.ValueType(code)
    return pb.UnknownError


def send_error_code(error: BaseException, client_version: str) -> pb.ServerError.ValueType:
    """Return the code with which a SEND is refused; a refusal for good makes every client fail the message.

    The C++ client fails a message on ChecksumError only: on any other code it reconnects and sends it again.
    """
    code = code_for(error)
    is_resent = code == pb.NotAllowedError and client_version.startswith(_CPP_CLIENTS)
    return pb.ChecksumError if is_resent else code


def exception_for(code: int, message: str) -> errors.AnabranchError:
    """Return the exception for an error code of a peer, with the peer's message."""
    if code == pb.MetadataError and message.startswith(ENCRYPTION_REQUIRED):
        return EncryptionRequiredError(message)
    return _EXCEPTION_OF_CODE.get(code, errors.UnknownServerError)(message)
