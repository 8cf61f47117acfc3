"""Which refusals of a role end an open producer or consumer."""

from __future__ import annotations

import pytest

from anabranch.client.decide.connecting.refused_roles import RefusedCredentials
from anabranch.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    CredentialsUnavailableError,
)


def test_a_missing_right_ends_at_once() -> None:
    assert RefusedCredentials().ends(AuthorizationError("no"), 0.0, 30.0)


@pytest.mark.parametrize(
    "error", [ConnectError("gone"), CredentialsUnavailableError("issuer"), TimeoutError()]
)
def test_an_outage_never_ends(error: Exception) -> None:
    refused = RefusedCredentials(since=0.0)
    assert not refused.ends(error, 1000.0, 30.0)


def test_credentials_end_when_they_were_refused_for_as_long_as_the_patience() -> None:
    refused = RefusedCredentials()
    error = AuthenticationError("expired")
    assert not refused.ends(error, 100.0, 30.0)
    assert not refused.ends(error, 129.0, 30.0)
    assert refused.ends(error, 130.0, 30.0)


def test_accepted_credentials_begin_the_patience_again() -> None:
    refused = RefusedCredentials()
    refused.refused(0.0)
    refused.accepted()
    assert not refused.ends(AuthenticationError("expired"), 100.0, 30.0)
