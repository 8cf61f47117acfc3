"""A proxy names the role of its client, and no other role may do so."""

from __future__ import annotations

import pytest

from anabranch.rights.callers import Caller
from anabranch.rights.proxies import fault_of_proxy

PROXIES = frozenset({"proxy", "other-proxy"})


@pytest.mark.parametrize(
    ("role", "original", "valid"),
    [
        ("alice", "", True),
        ("alice", "alice", True),
        ("alice", "bob", False),
        ("alice", "proxy", False),
        ("proxy", "alice", True),
        ("proxy", "", False),
        ("proxy", "proxy", False),
        ("proxy", "other-proxy", False),
    ],
)
def test_only_a_proxy_speaks_for_another_role(role: str, original: str, valid: bool) -> None:
    assert (fault_of_proxy(Caller(role, original), PROXIES) == "") is valid


def test_names_belong_to_the_client_behind_a_proxy() -> None:
    assert Caller("proxy", "alice").principal == "alice"
