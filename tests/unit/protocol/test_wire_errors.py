from __future__ import annotations

import pytest

from anabranch import errors
from anabranch.protocol.entry.encryption import EncryptionRequiredError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for, exception_for, send_error_code

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.AnabranchError)
]


@pytest.mark.parametrize("code", pb.ServerError.values())
def test_every_code_has_an_exception_that_keeps_the_words(code: int) -> None:
    error = exception_for(code, "what the broker said")
    assert isinstance(error, errors.AnabranchError)
    assert str(error) == "what the broker said"


def test_an_unknown_code_is_an_unknown_error() -> None:
    assert type(exception_for(999, "")) is errors.UnknownServerError


def test_codes_survive_the_way_there_and_back() -> None:
    # Two codes share an exception with another one, three belong to transactions.
    for code in set(pb.ServerError.values()) - {8, 20, 21, 23, 24}:
        assert code_for(exception_for(code, "")) == code


@pytest.mark.parametrize("kind", ALL)
def test_a_retryable_error_stays_retryable_on_the_other_side(kind: type[errors.AnabranchError]) -> None:
    received = exception_for(code_for(kind("")), "")
    assert received.retryable or not kind.retryable


def test_a_lack_of_encryption_is_told_apart_from_a_failing_metadata_store() -> None:
    # Brokers of Apache Pulsar refuse a producer with these words.
    refused = exception_for(pb.MetadataError, "Encryption is required in persistent://public/default/orders")
    assert type(refused) is EncryptionRequiredError
    assert not refused.retryable
    assert code_for(refused) == pb.MetadataError, "clients of Pulsar know this code for it"
    assert exception_for(pb.MetadataError, "the store is gone").retryable


def test_a_subclass_has_the_code_of_its_nearest_relative() -> None:
    class OurBusyError(errors.ProducerBusyError):
        pass

    assert code_for(OurBusyError("")) == pb.ProducerBusy
    assert code_for(errors.SendTimeoutError("")) == pb.ServiceNotReady
    assert code_for(errors.InvalidServiceUrlError("")) == pb.NotAllowedError
    assert code_for(errors.InvalidNameError("")) == pb.InvalidTopicName


def test_strangers_are_unknown_errors() -> None:
    assert code_for(ZeroDivisionError()) == pb.UnknownError
    assert code_for(errors.AnabranchError()) == pb.UnknownError


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("Pulsar-CPP-v3.13.0", pb.ChecksumError),
        ("Pulsar-CPP-v3.13.0-mine", pb.ChecksumError),
        ("Pulsar-Java-v4.0.7", pb.NotAllowedError),
        ("Pulsar Go 0.18.0", pb.NotAllowedError),
        ("Anabranch-Python", pb.NotAllowedError),
    ],
)
def test_a_refused_entry_has_the_code_on_which_its_client_drops_it(version: str, code: int) -> None:
    assert send_error_code(errors.NotAllowedError("too large"), version) == code
    assert send_error_code(errors.PersistenceError("disk full"), version) == pb.PersistenceError
