"""The gate of a test."""

from __future__ import annotations

import pytest

from anabranch.testing.simloop import SimLoop
from tests.harness.gates import TestedGate


@pytest.fixture
def gate(loop: SimLoop) -> TestedGate:
    """A gate; a test calls `use` with its settings."""
    return TestedGate(loop)
