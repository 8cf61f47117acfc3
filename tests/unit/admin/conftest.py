"""The admin API of the brokers of a test."""

from __future__ import annotations

import pytest

from tests.harness.admin import ORDERS, Admin
from tests.harness.cluster import Brokers


@pytest.fixture
def admin(brokers: Brokers) -> Admin:
    """Calls each broker of `brokers` in turn."""
    return Admin(brokers)


@pytest.fixture
def orders(admin: Admin) -> Admin:
    """The fixture `admin`, after it made a topic of two segments."""
    assert admin("PUT", f"{ORDERS}?numInitialSegments=2", {"colour": "red"}).status == 204
    return admin
