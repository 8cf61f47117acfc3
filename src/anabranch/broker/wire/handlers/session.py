"""Commands about the connection itself, and those whose features are not served.

Every request gets an answer, so that a client which wants a transaction does not wait for it.
"""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler, refuse_plainly
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

_REASON = NotAllowedError("transactions are not supported by this broker")
_NO_TOPIC_LIST = NotAllowedError(
    "topic lists cannot be watched here; ask for them with GET_TOPICS_OF_NAMESPACE"
)


def ignore(connection: ServerConnection, command: Message) -> None:
    """Take a command that needs no action and no answer."""


def new_transaction(connection: ServerConnection, command: pb.CommandNewTxn) -> None:
    # Clients match the response to its request by the number of the coordinator, also for an error.
    connection.send(
        pb.CommandNewTxnResponse(
            request_id=command.request_id,
            txnid_most_bits=command.tc_id,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def coordinator_connect(connection: ServerConnection, command: pb.CommandTcClientConnectRequest) -> None:
    connection.send(
        pb.CommandTcClientConnectResponse(
            request_id=command.request_id, error=code_for(_REASON), message=str(_REASON)
        )
    )


def add_partition(connection: ServerConnection, command: pb.CommandAddPartitionToTxn) -> None:
    connection.send(
        pb.CommandAddPartitionToTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def add_subscription(connection: ServerConnection, command: pb.CommandAddSubscriptionToTxn) -> None:
    connection.send(
        pb.CommandAddSubscriptionToTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_transaction(connection: ServerConnection, command: pb.CommandEndTxn) -> None:
    connection.send(
        pb.CommandEndTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_on_partition(connection: ServerConnection, command: pb.CommandEndTxnOnPartition) -> None:
    connection.send(
        pb.CommandEndTxnOnPartitionResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_on_subscription(connection: ServerConnection, command: pb.CommandEndTxnOnSubscription) -> None:
    connection.send(
        pb.CommandEndTxnOnSubscriptionResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def watch_coordinators(connection: ServerConnection, command: pb.CommandWatchTcAssignments) -> None:
    connection.send(
        pb.CommandWatchTcAssignmentsUpdate(
            watch_id=command.watch_id, error=code_for(_REASON), message=str(_REASON)
        )
    )


def watch_topic_list(connection: ServerConnection, command: pb.CommandWatchTopicList) -> None:
    refuse_plainly(connection, command, _NO_TOPIC_LIST)


def close_topic_list(connection: ServerConnection, command: pb.CommandWatchTopicListClose) -> None:
    connection.send(pb.CommandSuccess(request_id=command.request_id))


HANDLERS = {
    pb.CommandAuthResponse: CommandHandler(ignore),
    pb.CommandNewTxn: CommandHandler(new_transaction),
    pb.CommandTcClientConnectRequest: CommandHandler(coordinator_connect),
    pb.CommandAddPartitionToTxn: CommandHandler(add_partition),
    pb.CommandAddSubscriptionToTxn: CommandHandler(add_subscription),
    pb.CommandEndTxn: CommandHandler(end_transaction),
    pb.CommandEndTxnOnPartition: CommandHandler(end_on_partition),
    pb.CommandEndTxnOnSubscription: CommandHandler(end_on_subscription),
    pb.CommandWatchTcAssignments: CommandHandler(watch_coordinators),
    pb.CommandWatchTcAssignmentsClose: CommandHandler(ignore),
    pb.CommandWatchTopicList: CommandHandler(watch_topic_list),
    pb.CommandWatchTopicListClose: CommandHandler(close_topic_list),
}
