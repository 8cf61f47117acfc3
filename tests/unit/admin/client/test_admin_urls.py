"""The addresses that admin clients take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch import AdminClient, AsyncAdminClient
from anabranch.errors import ConnectError, InvalidConfigurationError, InvalidNameError

WRONG = [
    "localhost:8080",
    "pulsar://a:6650",
    "http://",
    "http://a:99999",
    "http://a:x",
    "http://a:0",
    "http://[::1",
]


@pytest.mark.parametrize("url", WRONG)
def test_an_address_that_names_no_broker_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="is not an admin URL"):
        AdminClient(url)
    with pytest.raises(InvalidConfigurationError, match="is not an admin URL"):
        AsyncAdminClient(url)


@pytest.mark.parametrize("url", ["http://a", "https://a:8443/", "http://[::1]:8080/admin"])
def test_host_and_port_are_kept(url: str) -> None:
    with AdminClient(url) as admin:
        assert url.startswith(admin.url)


def test_a_call_without_a_name_or_without_segments_is_refused() -> None:
    with AdminClient("http://a") as admin:
        with pytest.raises(InvalidConfigurationError, match="a name in a call about tenants is empty"):
            admin.delete_tenant("")
        with pytest.raises(InvalidConfigurationError, match="name the segments to merge"):
            admin.merge("orders", [])


async def test_a_topic_of_the_other_kind_is_refused_before_the_call_is_sent() -> None:
    classic, scalable = "persistent://public/default/orders", "topic://public/default/orders"
    with AdminClient("http://127.0.0.1:1") as admin:
        call: Callable[[str], object]
        for call in (admin.create_topic, admin.delete_topic, admin.topic_stats, admin.why):
            with pytest.raises(InvalidNameError, match="this call is for topic:// topics"):
                call(classic)
        for call in (
            admin.create_classic_topic,
            admin.delete_classic_topic,
            admin.classic_stats,
            admin.terminate,
        ):
            with pytest.raises(InvalidNameError, match="this call is for persistent://"):
                call(scalable)
        with pytest.raises(ConnectError):
            admin.migrate(classic)
    async with AsyncAdminClient("http://127.0.0.1:1") as others:
        with pytest.raises(InvalidNameError, match="this call is for topic:// topics"):
            await others.delete_topic(classic)
        with pytest.raises(InvalidNameError, match="this call is for persistent://"):
            await others.delete_classic_topic(scalable)
