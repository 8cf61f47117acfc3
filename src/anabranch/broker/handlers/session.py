"""Commands about the connection itself, and those whose features are not served.

Every request gets an answer: a client that asks for a transaction must hear that there are none, not wait.
"""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.connection import Connection, Handler, refuse_plainly
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

_REASON = NotAllowedError("transactions are not supported by this broker")
_NO_TOPIC_LIST = NotAllowedError(
    "topic lists cannot be watched here; ask for them with GET_TOPICS_OF_NAMESPACE"
)


def ignore(connection: Connection, command: Message) -> None:
    """Nothing to do, and no answer expected."""


def new_transaction(connection: Connection, command: pb.CommandNewTxn) -> None:
    # Java finds the asker by the coordinator's number, also for an error.
    connection.send(
        pb.CommandNewTxnResponse(
            request_id=command.request_id,
            txnid_most_bits=command.tc_id,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def coordinator_connect(connection: Connection, command: pb.CommandTcClientConnectRequest) -> None:
    connection.send(
        pb.CommandTcClientConnectResponse(
            request_id=command.request_id, error=code_for(_REASON), message=str(_REASON)
        )
    )


def add_partition(connection: Connection, command: pb.CommandAddPartitionToTxn) -> None:
    connection.send(
        pb.CommandAddPartitionToTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def add_subscription(connection: Connection, command: pb.CommandAddSubscriptionToTxn) -> None:
    connection.send(
        pb.CommandAddSubscriptionToTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_transaction(connection: Connection, command: pb.CommandEndTxn) -> None:
    connection.send(
        pb.CommandEndTxnResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_on_partition(connection: Connection, command: pb.CommandEndTxnOnPartition) -> None:
    connection.send(
        pb.CommandEndTxnOnPartitionResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def end_on_subscription(connection: Connection, command: pb.CommandEndTxnOnSubscription) -> None:
    connection.send(
        pb.CommandEndTxnOnSubscriptionResponse(
            request_id=command.request_id,
            txnid_least_bits=command.txnid_least_bits,
            txnid_most_bits=command.txnid_most_bits,
            error=code_for(_REASON),
            message=str(_REASON),
        )
    )


def watch_coordinators(connection: Connection, command: pb.CommandWatchTcAssignments) -> None:
    connection.send(
        pb.CommandWatchTcAssignmentsUpdate(
            watch_id=command.watch_id, error=code_for(_REASON), message=str(_REASON)
        )
    )


def watch_topic_list(connection: Connection, command: pb.CommandWatchTopicList) -> None:
    refuse_plainly(connection, command, _NO_TOPIC_LIST)


def close_topic_list(connection: Connection, command: pb.CommandWatchTopicListClose) -> None:
    connection.send(pb.CommandSuccess(request_id=command.request_id))


HANDLERS = {
    pb.CommandAuthResponse: Handler(ignore),
    pb.CommandNewTxn: Handler(new_transaction),
    pb.CommandTcClientConnectRequest: Handler(coordinator_connect),
    pb.CommandAddPartitionToTxn: Handler(add_partition),
    pb.CommandAddSubscriptionToTxn: Handler(add_subscription),
    pb.CommandEndTxn: Handler(end_transaction),
    pb.CommandEndTxnOnPartition: Handler(end_on_partition),
    pb.CommandEndTxnOnSubscription: Handler(end_on_subscription),
    pb.CommandWatchTcAssignments: Handler(watch_coordinators),
    pb.CommandWatchTcAssignmentsClose: Handler(ignore),
    pb.CommandWatchTopicList: Handler(watch_topic_list),
    pb.CommandWatchTopicListClose: Handler(close_topic_list),
}
