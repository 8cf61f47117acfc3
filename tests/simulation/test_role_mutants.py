"""Broken builds of rights, each of which the judges of the simulation must notice."""

from __future__ import annotations

import pytest

from anabranch.broker.catalog.authorizer import Authorizer
from tests.harness.mutants import assert_caught, favour


def test_a_broker_that_serves_every_role_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, guarded=True, intruders=3, messages=30)
    monkeypatch.setattr(Authorizer, "admit", lambda self, caller, needs: None)
    assert_caught("an intruder got")
