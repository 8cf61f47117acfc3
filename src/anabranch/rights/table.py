"""The one table of rights: what each command of a client and each admin call needs, and on which resource.

A command or call without a line here cannot be served. A line finds its resource with the same functions that
the handler uses, so no spelling of a name means one topic to the check and another to the handler.

The answers to `_LISTS`, `_NAMES`, `/why`, `/stats` and `/metrics` hold names of other topics, consumers or
producers. Their handlers leave out what the caller may not see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from anabranch.errors import NotFoundError
from anabranch.model.names import DOMAINS, Domain, TopicName, parse_namespace, validate_entity
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.needs import Need, Right, on_topic

Part = Callable[[str], str]
"""Gives a named part of a path, decoded."""


class TableLine(NamedTuple):
    """One line of the table."""

    right: Right
    needs: Callable[[Any], tuple[Need, ...]]
    """All needs of a command, or of a call by its path; each must be met."""


def _always(right: Right) -> TableLine:
    needs = (Need(right),)
    return TableLine(right, lambda _: needs)


OPEN: Final = _always(Right.OPEN)
OWN: Final = _always(Right.OWN)
AUTHENTICATED: Final = _always(Right.AUTHENTICATED)
SUPERUSER: Final = _always(Right.SUPERUSER)
PEER: Final = _always(Right.PEER)


def _command_topic(right: Right, command: Any) -> tuple[Need, ...]:
    return (on_topic(right, TopicName.parse(command.topic)),)


def _command_registration(command: pb.CommandScalableTopicSubscribe) -> tuple[Need, ...]:
    return (on_topic(Right.CONSUME, TopicName.parse(command.topic), command.subscription),)


def _command_subscribe(command: pb.CommandSubscribe) -> tuple[Need, ...]:
    name = TopicName.parse(command.topic)
    # With this field, the subscription is made on all logs of the scalable topic that the log belongs to.
    topic = name.partitioned_topic if command.HasField("opened_in") else name
    return (on_topic(Right.CONSUME, topic, command.subscription),)


def _command_producer(command: pb.CommandProducer) -> tuple[Need, ...]:
    name = TopicName.parse(command.topic)
    produce = on_topic(Right.PRODUCE, name)
    if not command.initial_subscription_name:
        return (produce,)
    return produce, on_topic(Right.CONSUME, name, command.initial_subscription_name)


def _command_namespace(command: Any) -> tuple[Need, ...]:
    return (Need(Right.USE_NAMESPACE, *parse_namespace(command.namespace)),)


_LOOK_UP: Final = TableLine(Right.LOOK_UP, partial(_command_topic, Right.LOOK_UP))
_PRODUCE: Final = TableLine(Right.PRODUCE, partial(_command_topic, Right.PRODUCE))
_LISTS: Final = TableLine(Right.USE_NAMESPACE, _command_namespace)

COMMANDS: Final[dict[type[Message], TableLine]] = {
    pb.CommandConnect: OPEN,
    pb.CommandAuthResponse: OWN,
    pb.CommandPing: OWN,
    pb.CommandPong: OWN,
    pb.CommandLookupTopic: _LOOK_UP,
    pb.CommandPartitionedTopicMetadata: _LOOK_UP,
    pb.CommandGetSchema: _LOOK_UP,
    pb.CommandGetOrCreateSchema: _PRODUCE,
    pb.CommandGetTopicsOfNamespace: _LISTS,
    pb.CommandWatchTopicList: _LISTS,
    pb.CommandWatchTopicListClose: OWN,
    pb.CommandWatchScalableTopics: _LISTS,
    pb.CommandWatchScalableTopicsClose: OWN,
    pb.CommandScalableTopicLookup: _LOOK_UP,
    pb.CommandScalableTopicClose: OWN,
    pb.CommandScalableTopicSubscribe: TableLine(Right.CONSUME, _command_registration),
    pb.CommandScalableTopicUnsubscribe: OWN,
    pb.CommandProducer: TableLine(Right.PRODUCE, _command_producer),
    pb.CommandSend: OWN,
    pb.CommandCloseProducer: OWN,
    pb.CommandSubscribe: TableLine(Right.CONSUME, _command_subscribe),
    pb.CommandFlow: OWN,
    pb.CommandAck: OWN,
    pb.CommandRedeliverUnacknowledgedMessages: OWN,
    pb.CommandUnsubscribe: OWN,
    pb.CommandSeek: OWN,
    pb.CommandGetLastMessageId: OWN,
    pb.CommandConsumerStats: OWN,
    pb.CommandCloseConsumer: OWN,
    pb.CommandTcClientConnectRequest: AUTHENTICATED,
    pb.CommandNewTxn: AUTHENTICATED,
    pb.CommandAddPartitionToTxn: AUTHENTICATED,
    pb.CommandAddSubscriptionToTxn: AUTHENTICATED,
    pb.CommandEndTxn: AUTHENTICATED,
    pb.CommandEndTxnOnPartition: SUPERUSER,
    pb.CommandEndTxnOnSubscription: SUPERUSER,
    pb.CommandWatchTcAssignments: AUTHENTICATED,
    pb.CommandWatchTcAssignmentsClose: OWN,
    pb.CommandPeerCall: PEER,
}
"""Every command that a client may send."""


def namespace_in(part: Part) -> str:
    """The namespace that a path names, as `tenant/namespace`; InvalidNameError if it cannot be one."""
    return "/".join(parse_namespace(f"{part('tenant')}/{part('namespace')}"))


def topic_in(domain: Domain, part: Part) -> TopicName:
    """The topic that a path names, in the scheme of the resource."""
    return TopicName(domain, part("tenant"), part("namespace"), part("topic"))


def lookup_in(part: Part) -> TopicName:
    """The topic that a lookup over HTTP names, with its scheme."""
    domain = part("domain")
    if domain not in DOMAINS:
        raise NotFoundError(f"unknown scheme {domain!r}; use one of {', '.join(DOMAINS)}")
    return TopicName.parse(f"{domain}://{part('tenant')}/{part('namespace')}/{part('topic')}")


def _of_tenant(part: Part) -> tuple[Need, ...]:
    return (Need(Right.TENANT_ADMIN, validate_entity("tenant", part("tenant"))),)


def _of_namespace(right: Right, part: Part) -> tuple[Need, ...]:
    return (Need(right, *parse_namespace(namespace_in(part))),)


def _of_topic(right: Right, domain: Domain, part: Part) -> tuple[Need, ...]:
    return (on_topic(right, topic_in(domain, part)),)


def _of_subscription(domain: Domain, part: Part) -> tuple[Need, ...]:
    return (on_topic(Right.CONSUME, topic_in(domain, part), part("subscription")),)


def _of_lookup(part: Part) -> tuple[Need, ...]:
    return (on_topic(Right.LOOK_UP, lookup_in(part)),)


def _topic_line(right: Right, domain: Domain) -> TableLine:
    return TableLine(right, partial(_of_topic, right, domain))


_TENANT: Final = TableLine(Right.TENANT_ADMIN, _of_tenant)
_ADMIN: Final = TableLine(Right.TENANT_ADMIN, partial(_of_namespace, Right.TENANT_ADMIN))
_NAMES: Final = TableLine(Right.USE_NAMESPACE, partial(_of_namespace, Right.USE_NAMESPACE))
_CLASSIC_ADMIN: Final = _topic_line(Right.TENANT_ADMIN, "persistent")
_CLASSIC_LOOK: Final = _topic_line(Right.LOOK_UP, "persistent")
_CLASSIC_READ: Final = _topic_line(Right.CONSUME, "persistent")
_CLASSIC_SUBSCRIPTION: Final = TableLine(Right.CONSUME, partial(_of_subscription, "persistent"))
_SCALABLE_ADMIN: Final = _topic_line(Right.TENANT_ADMIN, "topic")
_SCALABLE_LOOK: Final = _topic_line(Right.LOOK_UP, "topic")
_SCALABLE_SUBSCRIPTION: Final = TableLine(Right.CONSUME, partial(_of_subscription, "topic"))

_BROKERS: Final = "/admin/v2/brokers"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_CLASSIC: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_SCALABLE: Final = "/admin/v2/scalable/{tenant}/{namespace}"
_CLASSIC_TOPIC: Final = _CLASSIC + "/{topic}"
_SCALABLE_TOPIC: Final = _SCALABLE + "/{topic}"
_CLASSIC_SUB: Final = _CLASSIC_TOPIC + "/subscription/{subscription}"
_SCALABLE_SUB: Final = _SCALABLE_TOPIC + "/subscriptions/{subscription}"
_SEGMENT: Final = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"

_RATES: Final = ("publishRate", "dispatchRate", "subscriptionDispatchRate")


def _policies(of: str, line: TableLine, *names: str) -> dict[tuple[str, str], TableLine]:
    return {(verb, f"{of}/{name}"): line for name in names for verb in ("GET", "POST", "DELETE")}


CALLS: Final[dict[tuple[str, str], TableLine]] = {
    # Load balancers ask for these without credentials.
    ("GET", "/status.html"): OPEN,
    ("GET", _BROKERS + "/health"): OPEN,
    ("GET", _BROKERS + "/ready"): OPEN,
    ("GET", "/metrics"): SUPERUSER,
    ("GET", "/metrics/"): SUPERUSER,
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): TableLine(Right.LOOK_UP, _of_lookup),
    ("GET", _BROKERS): SUPERUSER,
    ("GET", _BROKERS + "/{cluster}"): SUPERUSER,
    ("GET", _BROKERS + "/version"): AUTHENTICATED,
    ("GET", _BROKERS + "/leaderBroker"): SUPERUSER,
    ("GET", _BROKERS + "/workers"): SUPERUSER,
    ("GET", "/admin/v2/clusters"): AUTHENTICATED,
    ("GET", "/admin/v2/clusters/{cluster}"): SUPERUSER,
    ("GET", "/admin/v2/tenants"): SUPERUSER,
    ("GET", "/admin/v2/tenants/{tenant}"): _TENANT,
    ("PUT", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("POST", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("DELETE", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("GET", "/admin/v2/tenants/{tenant}/quotas"): _TENANT,
    ("GET", "/admin/v2/tenants/{tenant}/usage"): _TENANT,
    ("POST", "/admin/v2/tenants/{tenant}/quotas"): SUPERUSER,
    ("DELETE", "/admin/v2/tenants/{tenant}/quotas"): SUPERUSER,
    ("GET", "/admin/v2/namespaces/{tenant}"): _TENANT,
    ("PUT", _NAMESPACE): _ADMIN,
    ("GET", _NAMESPACE): _ADMIN,
    ("DELETE", _NAMESPACE): _ADMIN,
    ("GET", _NAMESPACE + "/topics"): _NAMES,
    ("GET", _NAMESPACE + "/permissions"): _ADMIN,
    ("GET", _NAMESPACE + "/permissions/subscription"): _ADMIN,
    ("POST", _NAMESPACE + "/permissions/subscription/{subscription}"): _ADMIN,
    ("POST", _NAMESPACE + "/permissions/{role}"): _ADMIN,
    ("DELETE", _NAMESPACE + "/permissions/{role}"): _ADMIN,
    ("DELETE", _NAMESPACE + "/permissions/{subscription}/{role}"): _ADMIN,
    ("GET", _NAMESPACE + "/{policy}"): _ADMIN,
    ("POST", _NAMESPACE + "/{policy}"): _ADMIN,
    ("PUT", _NAMESPACE + "/{policy}"): _ADMIN,
    ("DELETE", _NAMESPACE + "/{policy}"): _ADMIN,
    **_policies(_NAMESPACE, _ADMIN, "scalableTopicAutoScalePolicy"),
    ("GET", _CLASSIC): _NAMES,
    ("GET", _CLASSIC + "/partitioned"): _NAMES,
    ("PUT", _CLASSIC_TOPIC): _CLASSIC_ADMIN,
    ("DELETE", _CLASSIC_TOPIC): _CLASSIC_ADMIN,
    ("PUT", _CLASSIC_TOPIC + "/partitions"): _CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/partitions"): _CLASSIC_ADMIN,
    ("GET", _CLASSIC_TOPIC + "/partitions"): _CLASSIC_LOOK,
    ("DELETE", _CLASSIC_TOPIC + "/partitions"): _CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/terminate"): _CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/terminate/partitions"): _CLASSIC_ADMIN,
    ("GET", _CLASSIC_TOPIC + "/lastMessageId"): _CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/stats"): _CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/partitioned-stats"): _CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/internalStats"): _CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/subscriptions"): _CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/permissions"): _CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/permissions/{role}"): _CLASSIC_ADMIN,
    ("DELETE", _CLASSIC_TOPIC + "/permissions/{role}"): _CLASSIC_ADMIN,
    ("PUT", _CLASSIC_SUB): _CLASSIC_SUBSCRIPTION,
    ("DELETE", _CLASSIC_SUB): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/skip_all"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/skip/{count}"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/resetcursor"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/resetcursor/{timestamp}"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/expireMessages/{seconds}"): _CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes"): _CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes/{lane}"): _CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes/{lane}/messages"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/lanes/{lane}/release"): _CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/lanes/{lane}/skip"): _CLASSIC_SUBSCRIPTION,
    ("GET", _SCALABLE): _NAMES,
    ("PUT", _SCALABLE_TOPIC): _SCALABLE_ADMIN,
    ("GET", _SCALABLE_TOPIC): _SCALABLE_LOOK,
    ("DELETE", _SCALABLE_TOPIC): _SCALABLE_ADMIN,
    ("GET", _SCALABLE_TOPIC + "/stats"): _SCALABLE_LOOK,
    ("GET", _SCALABLE_TOPIC + "/why"): _SCALABLE_LOOK,
    ("GET", _SCALABLE_TOPIC + "/segments/{segment}/stats"): _SCALABLE_LOOK,
    ("POST", _SCALABLE_TOPIC + "/migrate"): _topic_line(Right.PRODUCE, "topic"),
    ("POST", _SCALABLE_TOPIC + "/split/{segment}"): SUPERUSER,
    ("POST", _SCALABLE_TOPIC + "/merge/{segments:path}"): SUPERUSER,
    ("POST", _SCALABLE_TOPIC + "/rebucket/{segment}"): SUPERUSER,
    ("GET", _SCALABLE_TOPIC + "/properties"): _SCALABLE_LOOK,
    ("PUT", _SCALABLE_TOPIC + "/properties"): _SCALABLE_ADMIN,
    ("DELETE", _SCALABLE_TOPIC + "/properties"): _SCALABLE_ADMIN,
    **_policies(_CLASSIC_TOPIC, _CLASSIC_ADMIN, *_RATES),
    **_policies(_SCALABLE_TOPIC, _SCALABLE_ADMIN, "autoScalePolicy", *_RATES),
    ("GET", _SCALABLE_TOPIC + "/permissions"): _SCALABLE_ADMIN,
    ("POST", _SCALABLE_TOPIC + "/permissions/{role}"): _SCALABLE_ADMIN,
    ("DELETE", _SCALABLE_TOPIC + "/permissions/{role}"): _SCALABLE_ADMIN,
    ("PUT", _SCALABLE_SUB): _SCALABLE_SUBSCRIPTION,
    ("DELETE", _SCALABLE_SUB): _SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/seek"): _SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/skip-all"): _SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes"): _SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes/{lane}"): _SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes/{lane}/messages"): _SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/lanes/{lane}/release"): _SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/lanes/{lane}/skip"): _SCALABLE_SUBSCRIPTION,
    ("PUT", _SEGMENT): SUPERUSER,
    ("POST", _SEGMENT + "/terminate"): SUPERUSER,
    ("DELETE", _SEGMENT): SUPERUSER,
    ("PUT", _SEGMENT + "/subscription/{subscription}"): SUPERUSER,
    ("DELETE", _SEGMENT + "/subscription/{subscription}"): SUPERUSER,
    ("GET", _SEGMENT + "/subscription/{subscription}/backlog"): SUPERUSER,
    ("POST", _SEGMENT + "/subscription/{subscription}/seek"): SUPERUSER,
    ("POST", _SEGMENT + "/subscription/{subscription}/skip-all"): SUPERUSER,
}
"""Every admin call: its method and the template of its path."""
