"""Names of side logs, which hold the spilled entries of one subscription, and the folders of all logs.

A side log is not a topic: its name cannot be parsed as one, so no client reaches it. The name has the
namespace and, by a digest, the subscription; the note of the subscription's cursor names its side logs.
"""

from __future__ import annotations

import hashlib
import re

from anabranch.errors import InvalidNameError
from anabranch.model.names import TopicName, storage_name

SCHEME = "spill://"

LOG, SUBSCRIPTION = "log", "subscription"
"""Properties of the cursor of a side log: where its entries come from."""

_SIDE_LOG = re.compile(r"spill://([-=:.\w]+)/([-=:.\w]+)/([0-9a-f]{32}-[0-9]{1,20})", re.ASCII)


def side_log_name(log: TopicName, subscription: str, first_ordinal: int) -> str:
    """Return the name of the side log whose first entry is this one of the subscription's log."""
    digest = hashlib.sha256(f"{log}\0{subscription}".encode()).hexdigest()[:32]
    return f"{SCHEME}{log.namespace_name}/{digest}-{first_ordinal}"


def is_side_log(name: str) -> bool:
    return name.startswith(SCHEME)


def namespace_of_log(name: str) -> str:
    """Return the tenant and namespace of any log, as `tenant/namespace`.

    Raise InvalidNameError if it cannot be a log.
    """
    if not is_side_log(name):
        return TopicName.parse(name).namespace_name
    tenant, namespace, _ = _parts(name)
    return f"{tenant}/{namespace}"


def folder_of_log(name: str) -> str:
    """Return the folder of a log, as one component of a path; InvalidNameError if it cannot be a log."""
    if not is_side_log(name):
        return TopicName.parse(name).storage_name
    return storage_name(["spill", *_parts(name)])


def _parts(name: str) -> tuple[str, ...]:
    found = _SIDE_LOG.fullmatch(name)
    if found is None:
        raise InvalidNameError(f"{name!r} is not the name of a side log")
    return found.groups()
