"""Names of side logs: one for each subscription and first entry, and never the name of a topic."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidNameError
from anabranch.model.log_names.side_logs import folder_of_log, is_side_log, namespace_of_log, side_log_name
from anabranch.model.names import TopicName

LOG = TopicName.parse("segment://acme/shop/orders/0000-ffff-0")


def test_a_side_log_has_the_namespace_of_its_log_and_a_folder() -> None:
    name = side_log_name(LOG, "all \u00fc / of it", 12)
    assert is_side_log(name)
    assert namespace_of_log(name) == namespace_of_log(str(LOG)) == "acme/shop"
    assert folder_of_log(name).startswith("spill~acme~shop~")
    assert folder_of_log(str(LOG)) == LOG.storage_name


def test_logs_subscriptions_and_first_entries_have_different_side_logs() -> None:
    other = TopicName.parse("persistent://acme/shop/orders")
    names = {side_log_name(log, sub, first) for log in (LOG, other) for sub in ("a", "b") for first in (0, 1)}
    assert len(names) == 8
    assert len({folder_of_log(name) for name in names}) == 8


def test_a_side_log_is_no_topic() -> None:
    with pytest.raises(InvalidNameError):
        TopicName.parse(side_log_name(LOG, "s", 0))


@pytest.mark.parametrize(
    "name", ["spill://", "spill://a/b", "spill://a/b/../c", "spill://../b/c", "x://a/b/c"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        folder_of_log(name)
    with pytest.raises(InvalidNameError):
        namespace_of_log(name)
