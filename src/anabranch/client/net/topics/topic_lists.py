"""The topics of a namespace now: scalable ones through a short watch, classic ones by a request."""

from __future__ import annotations

import asyncio

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import NotConnectedError, OperationTimeoutError, UnsupportedFeatureError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for


class _TopicListing:
    """Receives the list of one watch: a snapshot, and further parts of a list too long for one command."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def updated(self, update: pb.CommandWatchScalableTopicsUpdate) -> None:
        if update.HasField("error"):
            self._fail(exception_for(update.error, update.message))
            return
        self.names.update(dict.fromkeys((*update.snapshot.topics, *update.diff.added)))
        for name in update.diff.removed:
            if name not in update.diff.added:
                self.names.pop(name, None)
        if not self.begun.done():
            self.begun.set_result(None)

    def connection_lost(self) -> None:
        self._fail(NotConnectedError("the connection was lost while listing topics"))

    def _fail(self, error: Exception) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)


async def list_scalable_topics(pool: ConnectionPool, namespace: str) -> list[str]:
    """List the scalable topics of a namespace `tenant/name` by full name; raises the broker's refusal."""
    connection = await pool.any_connection()
    if not connection.machine.server_features.supports_scalable_topics:
        raise UnsupportedFeatureError("the broker does not support scalable topics")
    watch_id, listing = pool.next_id(), _TopicListing()
    # A namespace that is not text raises here, before the connection knows the watch.
    command = pb.CommandWatchScalableTopics(watch_id=watch_id, namespace=namespace)
    connection.watches[watch_id] = listing
    connection.send(command)
    try:
        async with asyncio.timeout(pool.operation_timeout_s):
            await listing.begun
        # The broker sends all parts of a long list together, so they precede this answer.
        await _request_names(pool, connection, namespace, pb.CommandGetTopicsOfNamespace.NON_PERSISTENT)
    except TimeoutError:
        raise OperationTimeoutError(
            f"{connection.peer} sent no topics of {namespace} within {pool.operation_timeout_s:g} s"
        ) from None
    finally:
        connection.watches.pop(watch_id, None)
        connection.send(pb.CommandWatchScalableTopicsClose(watch_id=watch_id))
    return sorted(listing.names)


async def list_classic_topics(pool: ConnectionPool, namespace: str) -> list[str]:
    """List the classic topics of a namespace by full name, partitioned ones without their partitions."""
    connection = await pool.any_connection()
    names = await _request_names(pool, connection, namespace, pb.CommandGetTopicsOfNamespace.PERSISTENT)
    return sorted({str(TopicName.parse(name).partitioned_topic) for name in names})


async def _request_names(
    pool: ConnectionPool,
    connection: BrokerConnection,
    namespace: str,
    mode: pb.CommandGetTopicsOfNamespace.Mode.ValueType,
) -> list[str]:
    command = pb.CommandGetTopicsOfNamespace(request_id=pool.next_id(), namespace=namespace, mode=mode)
    reply = await connection.request(
        command, pb.CommandGetTopicsOfNamespaceResponse, pool.operation_timeout_s
    )
    return list(reply.topics)
