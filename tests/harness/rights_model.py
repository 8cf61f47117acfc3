"""Pulsar's model of rights as a judge: which role may do what, decided apart from the broker's own table.

The operations come from a text file; the roles and resources of the matrix are here. Nothing in this module
comes from `anabranch.rights`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

Sections = dict[str, dict[str, str]]


class RightsSpot(NamedTuple):
    """A resource of the matrix; the parts that an operation does not name do not matter."""

    about: str
    tenant: str
    namespace: str
    topic: str
    subscription: str


OWN_TENANT: Final = "shop"
OWN_NAMESPACE: Final = "shop/prod"
FOREIGN_NAMESPACE: Final = "bank/prod"
SPOTS: Final = (
    RightsSpot("own, reserved subscription", "shop", "prod", "orders", "billing"),
    RightsSpot("own, free subscription", "shop", "prod", "orders", "free"),
    RightsSpot("own, another topic", "shop", "prod", "others", "free"),
    RightsSpot("own, missing topic", "shop", "prod", "nothing", "free"),
    RightsSpot("own, missing namespace", "shop", "nowhere", "orders", "free"),
    RightsSpot("foreign", "bank", "prod", "orders", "free"),
    RightsSpot("foreign, missing topic", "bank", "prod", "nothing", "free"),
    RightsSpot("missing tenant", "void", "prod", "orders", "free"),
)

ROLES: Final = (
    "root",
    "shop-admin",
    "bank-admin",
    "producer",
    "consumer",
    "both",
    "limited",
    "topical",
    "stranger",
    "",
    "proxy/root",
    "proxy/shop-admin",
    "proxy/producer",
    "proxy/limited",
    "proxy/stranger",
    "proxy",
    "proxy/proxy",
    "producer/root",
)
"""Roles; empty without credentials, `proxy/client` for a client behind a proxy."""

GRANTED: Final[dict[str, list[str]]] = {
    "producer": ["produce"],
    "consumer": ["consume"],
    "both": ["produce", "consume"],
    "limited": ["consume"],
    "proxy": ["produce", "consume"],
}
"""Grants on the own namespace; all roles but `limited` may use its reserved subscription."""
TOPICAL: Final = ("topical", "orders")
"""A role with both grants on one topic."""
POLICIES: Final = {
    "auth_policies": {
        "namespace_auth": GRANTED,
        "destination_auth": {f"persistent://{OWN_NAMESPACE}/orders": {"topical": ["produce", "consume"]}},
        "subscription_auth_roles": {"billing": ["producer", "consumer", "both", "proxy", "topical"]},
    }
}


def read_model(path: Path) -> Sections:
    """The sections of a model file, with one `name: words` in each line."""
    sections: Sections = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            # Templates of paths may contain a colon too.
            name, _, words = line.rpartition(":")
            lines[name] = words.strip()
    return sections


def may(role: str, callers: list[set[str]], spot: RightsSpot, *, with_subscription: bool) -> bool:
    """Whether a role may do operations, each with the callers that the model lists for it."""
    if all("anybody" in one for one in callers):
        return True
    proxy, behind, client = role.partition("/")
    if not role or (proxy == "proxy") != bool(behind) or client == "proxy":
        return False
    return all(
        _may_one(one, listed, spot, with_subscription=with_subscription)
        for one in filter(None, (proxy, client))
        for listed in callers
    )


def _may_one(role: str, callers: set[str], spot: RightsSpot, *, with_subscription: bool) -> bool:
    if "brokers" in callers:
        return False
    if role == "root" or "proven" in callers:
        return True
    if "admin" in callers and role == f"{spot.tenant}-admin":
        return True
    if f"{spot.tenant}/{spot.namespace}" != OWN_NAMESPACE:
        return False
    everywhere = GRANTED.get(role, [])
    here = ["produce", "consume"] if (role, spot.topic) == TOPICAL else everywhere
    reserved = with_subscription and spot.subscription == "billing" and role == "limited"
    return (
        ("namespace" in callers and bool(everywhere))
        or ("produce" in callers and "produce" in here)
        or ("consume" in callers and "consume" in here and not reserved)
    )
