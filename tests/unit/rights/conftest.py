"""The admin API of the brokers of a test."""

from __future__ import annotations

import pytest

from tests.harness.admin import Admin
from tests.harness.cluster import Brokers


@pytest.fixture
def admin(brokers: Brokers) -> Admin:
    return Admin(brokers)
