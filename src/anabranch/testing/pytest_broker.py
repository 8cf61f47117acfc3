"""The pytest plugin for applications: the fixture `anabranch_broker`, a broker in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from anabranch.testing.local_broker import LocalBroker


@pytest.fixture
def anabranch_broker() -> Iterator[LocalBroker]:
    """A fresh broker in this process, with memory in place of disks.

    Example:
        with Client(anabranch_broker.url) as client:
            client.create_producer("orders").send(b"one tea", key="alice")
            anabranch_broker.split("orders")
            anabranch_broker.crash()
    """
    # Applications whose tests use no broker should not wait for its modules.
    from anabranch.testing.local_broker import LocalBroker

    with LocalBroker() as broker:
        yield broker
