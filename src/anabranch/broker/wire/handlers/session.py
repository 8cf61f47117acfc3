"""Commands about the connection itself, and those whose features are not served.

Every request gets an answer, so that a client which wants a transaction does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler, refuse_plainly, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb

_REASON = NotAllowedError("transactions are not supported by this broker")
_TRANSACTION = ("request_id", "txnid_least_bits", "txnid_most_bits")
_NO_TOPIC_LIST = NotAllowedError(
    "topic lists cannot be watched here; ask for them with GET_TOPICS_OF_NAMESPACE"
)


def ignore(connection: ServerConnection, command: Message) -> None:
    """Take a command that needs no action and no answer."""


def new_transaction(connection: ServerConnection, command: pb.CommandNewTxn) -> None:
    # Clients match the response to its request by the number of the coordinator, also for an error.
    refuse = refuse_with(pb.CommandNewTxnResponse, txnid_most_bits=command.tc_id)
    refuse(connection, command, _REASON)


def no_transaction(
    response: Callable[..., Message], *echoed: str
) -> Callable[[ServerConnection, Message], None]:
    """The handler that refuses a command of a transaction."""
    refuse = refuse_with(response, *echoed)
    return lambda connection, command: refuse(connection, command, _REASON)


def watch_topic_list(connection: ServerConnection, command: pb.CommandWatchTopicList) -> None:
    refuse_plainly(connection, command, _NO_TOPIC_LIST)


def close_topic_list(connection: ServerConnection, command: pb.CommandWatchTopicListClose) -> None:
    connection.send(pb.CommandSuccess(request_id=command.request_id))


HANDLERS = {
    pb.CommandAuthResponse: CommandHandler(ignore),
    pb.CommandNewTxn: CommandHandler(new_transaction),
    pb.CommandTcClientConnectRequest: CommandHandler(no_transaction(pb.CommandTcClientConnectResponse)),
    pb.CommandAddPartitionToTxn: CommandHandler(
        no_transaction(pb.CommandAddPartitionToTxnResponse, *_TRANSACTION)
    ),
    pb.CommandAddSubscriptionToTxn: CommandHandler(
        no_transaction(pb.CommandAddSubscriptionToTxnResponse, *_TRANSACTION)
    ),
    pb.CommandEndTxn: CommandHandler(no_transaction(pb.CommandEndTxnResponse, *_TRANSACTION)),
    pb.CommandEndTxnOnPartition: CommandHandler(
        no_transaction(pb.CommandEndTxnOnPartitionResponse, *_TRANSACTION)
    ),
    pb.CommandEndTxnOnSubscription: CommandHandler(
        no_transaction(pb.CommandEndTxnOnSubscriptionResponse, *_TRANSACTION)
    ),
    pb.CommandWatchTcAssignments: CommandHandler(
        no_transaction(pb.CommandWatchTcAssignmentsUpdate, "watch_id")
    ),
    pb.CommandWatchTcAssignmentsClose: CommandHandler(ignore),
    pb.CommandWatchTopicList: CommandHandler(watch_topic_list),
    pb.CommandWatchTopicListClose: CommandHandler(close_topic_list),
}
