"""The right that a command or an admin call needs, and the resource that it needs it on."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from anabranch.errors import AuthorizationError
from anabranch.model.names import TopicName


class Right(enum.Enum):
    """Kinds of rights, from those that are never checked to those that few roles have."""

    OPEN = "nothing, not even credentials"
    OWN = "nothing more: it concerns objects that this connection opened with a right"
    AUTHENTICATED = "a proven role"
    LOOK_UP = "the right to produce or to consume"
    PRODUCE = "the right to produce"
    CONSUME = "the right to consume"
    USE_NAMESPACE = "the right to produce or to consume, granted on the whole namespace"
    TENANT_ADMIN = "a role among the admins of the tenant"
    SUPERUSER = "a superuser"
    PEER = "a broker of this cluster"


class MissingRightError(AuthorizationError):
    """A caller lacks a right; `resource` and `reason` are for the audit log and never for the caller."""

    def __init__(self, text: str, resource: str = "", reason: str = "") -> None:
        super().__init__(text)
        self.resource = resource
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Need:
    """One right on one resource; parts of the resource that do not matter are empty."""

    right: Right
    tenant: str = ""
    namespace: str = ""
    """The name inside the tenant."""
    topic: TopicName | None = None
    subscription: str = ""

    @property
    def namespace_name(self) -> str:
        """The namespace as `tenant/namespace`; empty for a need that is not about one."""
        return f"{self.tenant}/{self.namespace}" if self.namespace else ""

    @property
    def resource(self) -> str:
        """The resource in words, made only from what the caller sent."""
        if self.topic is not None:
            of_subscription = f" with subscription {self.subscription}" if self.subscription else ""
            return f"{self.topic}{of_subscription}"
        if self.tenant:
            return f"namespace {self.namespace_name}" if self.namespace else f"tenant {self.tenant}"
        return "this broker"


def on_topic(right: Right, name: TopicName, subscription: str = "") -> Need:
    """Return a need on a topic; a segment and a partition need the rights of their topic."""
    return Need(right, name.tenant, name.namespace, name, subscription)
