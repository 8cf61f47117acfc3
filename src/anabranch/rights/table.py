"""The table of rights of the binary protocol: what each command of a client needs, and on which resource.

A command without a line here cannot be served. Admin calls declare their right at their endpoint
(`admin/endpoints.py`), from the same lines.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from anabranch.model.names import TopicName, parse_namespace
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.needs import Need, Right, on_topic
from anabranch.rights.rows import AUTHENTICATED, OPEN, OWN, PEER, SUPERUSER, RightRow


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


_LOOK_UP: Final = RightRow(Right.LOOK_UP, partial(_command_topic, Right.LOOK_UP))
_PRODUCE: Final = RightRow(Right.PRODUCE, partial(_command_topic, Right.PRODUCE))
_LISTS: Final = RightRow(Right.USE_NAMESPACE, _command_namespace)

COMMANDS: Final[dict[type[Message], RightRow]] = {
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
    pb.CommandScalableTopicSubscribe: RightRow(Right.CONSUME, _command_registration),
    pb.CommandScalableTopicUnsubscribe: OWN,
    pb.CommandProducer: RightRow(Right.PRODUCE, _command_producer),
    pb.CommandSend: OWN,
    pb.CommandCloseProducer: OWN,
    pb.CommandSubscribe: RightRow(Right.CONSUME, _command_subscribe),
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
