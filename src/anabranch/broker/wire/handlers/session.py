"""Commands that need no action, and refusals of features that this broker does not serve."""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb

_TRANSACTION = ("request_id", "txnid_least_bits", "txnid_most_bits")


def ignore(connection: ServerConnection, command: Message) -> None:
    """Take a command that needs no action and no answer."""


def no_transactions(connection: ServerConnection, command: Message) -> None:
    raise NotAllowedError("transactions are not supported by this broker")


def refuse_new_transaction(connection: ServerConnection, command: pb.CommandNewTxn, error: Exception) -> None:
    # Clients match the response to its request by the number of the coordinator, also for an error.
    refuse_with(pb.CommandNewTxnResponse, txnid_most_bits=command.tc_id)(connection, command, error)


_REFUSALS = {
    pb.CommandNewTxn: refuse_new_transaction,
    pb.CommandTcClientConnectRequest: refuse_with(pb.CommandTcClientConnectResponse),
    pb.CommandAddPartitionToTxn: refuse_with(pb.CommandAddPartitionToTxnResponse, *_TRANSACTION),
    pb.CommandAddSubscriptionToTxn: refuse_with(pb.CommandAddSubscriptionToTxnResponse, *_TRANSACTION),
    pb.CommandEndTxn: refuse_with(pb.CommandEndTxnResponse, *_TRANSACTION),
    pb.CommandEndTxnOnPartition: refuse_with(pb.CommandEndTxnOnPartitionResponse, *_TRANSACTION),
    pb.CommandEndTxnOnSubscription: refuse_with(pb.CommandEndTxnOnSubscriptionResponse, *_TRANSACTION),
    pb.CommandWatchTcAssignments: refuse_with(pb.CommandWatchTcAssignmentsUpdate, "watch_id"),
}
"""The answer to each command of a transaction."""

HANDLERS = {
    **{command: CommandHandler(no_transactions, refuse) for command, refuse in _REFUSALS.items()},
    pb.CommandWatchTcAssignmentsClose: CommandHandler(ignore),
}
