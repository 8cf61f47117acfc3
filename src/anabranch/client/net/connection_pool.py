"""The connections of one client: one per broker address, found by address, by service host or by topic.

The pool knows nothing of segments, batches or layouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TypeVar

from anabranch.aio import AttemptCancelled, Backoff, SharedAttempts, is_transient, retry
from anabranch.arguments import check_optional, refuse_unknown, refused
from anabranch.client.decide.connecting.refused_roles import RefusedCredentials, is_refused_role
from anabranch.client.net.closing import Deadline, farewell, took_too_long
from anabranch.client.net.connection import Address, BrokerConnection, address_of
from anabranch.client.net.credentials import Credentials
from anabranch.client.net.trouble import BrokerTrouble
from anabranch.client.options import ClientArguments, log, parse_service_url
from anabranch.credentials.asking import checked_authentication
from anabranch.credentials.authentication import Authentication
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConnectError,
    NotConnectedError,
    OperationTimeoutError,
    RemoteProtocolError,
)
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from anabranch.transport.tls import TLS_SCHEME
from anabranch.transport.tls_arguments import TlsOf, tls_of
from anabranch.transport.tls_errors import TlsError

T = TypeVar("T")

_REDIRECTS_MAX = 20

RECONNECT = Backoff(0.1, 1.0)
"""Waits between attempts to attach to a broker; the longest one bounds the delay after a takeover."""

REFUSED = Backoff(0.1, 5.0)
"""Waits between attempts of a role that the broker refused."""


FIRST_TIMEOUT_S = 1.0
"""Timeout of the first handshake or look-up at an address; longer after each timeout."""


def pause_s(problem: BaseException | None, failures: int, rng: Random) -> float:
    """Return how long to wait after this many failed attempts, the last of which ended with `problem`."""
    refused = problem is not None and is_refused_role(problem)
    return (REFUSED if refused else RECONNECT).delay(failures - 1, rng)


class GrowingTimeouts:
    """The timeout of requests to each address: short for a paused broker, and growing for a slow one."""

    def __init__(self, limit_s: float) -> None:
        self._timeouts = Backoff(min(FIRST_TIMEOUT_S, limit_s), limit_s)
        self._expired: dict[Address, int] = {}

    def timeout_s(self, address: Address) -> float:
        return self._timeouts.delay(self._expired.get(address, 0))

    def answered(self, address: Address) -> None:
        self._expired.pop(address, None)

    def expired(self, address: Address) -> None:
        self._expired[address] = self._expired.get(address, 0) + 1


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """The time limits of one client."""

    connect_s: float = 10.0
    operation_s: float = 30.0
    keep_alive_s: float = 30.0


class ConnectionPool:
    """All connections of one client, and the ids that must be unique on each of them."""

    def __init__(
        self,
        hosts: tuple[Address, ...],
        times: PoolTimes,
        *,
        authentication: Authentication | None = None,
        tls: TlsOf | None = None,
        rng: Random,
    ) -> None:
        self.operation_timeout_s = times.operation_s
        self.rng = rng
        self.next_id: Callable[[], int] = count(1).__next__
        """The next request, producer, consumer or session id; one counter makes all of them unique."""
        self.hosts = hosts
        self._tls = tls
        self._was_connected = False
        self._next_host = rng.randrange(len(hosts))
        self._keep_alive_s = times.keep_alive_s
        self._credentials = Credentials(authentication, times.connect_s, rng)
        self.connections: dict[Address, BrokerConnection] = {}
        """The open connections that are used for new requests."""
        self._dialing: SharedAttempts[Address, BrokerConnection] = SharedAttempts()
        self._own: dict[BrokerConnection, None] = {}
        """Connections that each have one user."""
        self._silent: dict[BrokerConnection, None] = {}
        """Connections that did not answer a look-up: still in use, but not for anything new."""
        self._refused = RefusedCredentials()
        self._handshakes = GrowingTimeouts(times.connect_s)
        self._look_ups = GrowingTimeouts(times.operation_s)
        self._trouble = BrokerTrouble()
        self._violations: dict[Address, int] = {}
        """Connections in a row that ended because the broker at an address broke the protocol."""
        self._closed = False

    async def connection(self, address: Address) -> BrokerConnection:
        """Return the connection to an address, opened if there is none; raises ConnectError."""
        if self._closed:
            raise AlreadyClosedError("the client is closed")
        existing = self.connections.get(address)
        if existing is not None:
            return existing
        try:
            made = await self._dialing.join(address, lambda: self._share(address))
        except AttemptCancelled:
            raise AlreadyClosedError("the client is closed") from None
        if not made.open:
            raise ConnectError(f"{address[0]}:{address[1]} closed the connection at once")
        return made

    async def own_connection(self, address: Address) -> BrokerConnection:
        """Open a connection that no other caller gets, and that the caller closes; raises ConnectError."""
        if self._closed:
            raise AlreadyClosedError("the client is closed")
        made = await self._dial(address)
        if self._closed:
            made.close()
            raise AlreadyClosedError("the client is closed")
        if not made.open:
            raise ConnectError(f"{made.peer} closed the connection at once")
        self._own[made] = None
        return made

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to one of the service hosts; the pool tries each host in turn."""
        error: ConnectError | None = None
        for _ in self.hosts:
            try:
                return await self.connection(self.hosts[self._next_host])
            except ConnectError as failed:
                error = failed
                self._rotate()
        assert error is not None
        raise error

    async def connection_for(self, topic: str, url: str | None = None) -> BrokerConnection:
        """Return the connection to the broker that serves a topic; a known broker `url` saves the look-up."""
        if url:
            return await self.connection(address_of(url))
        connection = await self.any_connection()
        authoritative = False
        for _ in range(_REDIRECTS_MAX):
            reply = await self._look_up(connection, topic, authoritative)
            if reply.proxy_through_service_url:
                return await self.any_connection()
            connection = await self.connection(self._address_in(reply, topic))
            if reply.response == pb.CommandLookupTopicResponse.Connect:
                return connection
            authoritative = reply.authoritative
        raise RemoteProtocolError(f"the look-up of {topic} was redirected {_REDIRECTS_MAX} times")

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        what: str,
        transient: Callable[[BaseException], bool] = is_transient,
        within_s: float | None = None,
    ) -> T:
        """Call `attempt` until it succeeds, fails for good or `within_s`, the operation timeout, is over."""
        limit_s = self.operation_timeout_s if within_s is None else within_s
        what = f"{what} at {', '.join(f'{host}:{port}' for host, port in self.hosts)}"
        try:
            return await retry(
                attempt,
                what=what,
                within_s=limit_s,
                backoff=RECONNECT,
                rng=self.rng,
                transient=transient,
            )
        except TlsError:
            raise
        except (ConnectError, NotConnectedError) as error:
            raise took_too_long(what, limit_s, error) from error

    def ends(self, error: BaseException) -> bool:
        """Whether an error ends an open producer or consumer, because the role was refused for good."""
        now = asyncio.get_running_loop().time()
        # A message that waits learns the refusal, and not only that its time is over.
        return self._refused.ends(error, now, self.operation_timeout_s / 2)

    @property
    def uses_tls(self) -> bool:
        """Whether all connections use TLS, so that only TLS addresses of brokers count."""
        return self._tls is not None

    def _address_in(self, reply: pb.CommandLookupTopicResponse, topic: str) -> Address:
        url = reply.brokerServiceUrlTls if self.uses_tls else reply.brokerServiceUrl
        if not url:
            kind, scheme = ("TLS", "pulsar") if self.uses_tls else ("plain", "pulsar+ssl")
            raise ConnectError(f"the broker of {topic} has no {kind} port; write {scheme}:// in the URL")
        return address_of(url)

    async def _look_up(
        self, connection: BrokerConnection, topic: str, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        command = pb.CommandLookupTopic(topic=topic, request_id=self.next_id(), authoritative=authoritative)
        timeout_s = self._look_ups.timeout_s(connection.address)
        try:
            reply = await connection.request(command, pb.CommandLookupTopicResponse, timeout_s)
        except OperationTimeoutError:
            # The next call uses the next service host.
            self._look_ups.expired(connection.address)
            self._forget(connection)
            if connection.open:
                self._silent[connection] = None
            for other in [silent for silent in self._silent if not silent.in_use]:
                other.close()
            raise
        self._look_ups.answered(connection.address)
        return reply

    async def _share(self, address: Address) -> BrokerConnection:
        connection = await self._dial(address)
        if connection.open:
            self.connections[address] = connection
        return connection

    async def _dial(self, address: Address) -> BrokerConnection:
        host, port = address
        violations = self._violations.get(address, 0)
        if violations:
            # Connecting succeeds each time, so no other pause would keep this from going on at full speed.
            await asyncio.sleep(RECONNECT.delay(violations - 1, self.rng))
        try:
            machine = await self._new_machine(host)
            connection = BrokerConnection(address, machine, self._forget, self._credentials.answer)
            timeout_s = self._handshakes.timeout_s(address)
            tls = None if self._tls is None else self._tls()
            await dial(host, port, lambda: machine, connection, timeout_s=timeout_s, tls=tls)
        except OperationTimeoutError as error:
            self._handshakes.expired(address)
            self._trouble.failed(address, "cannot reach", error)
            raise ConnectError(str(error)) from error
        except AnabranchError as error:
            if is_refused_role(error):
                self._refused.refused(asyncio.get_running_loop().time())
                self._credentials.refused()
            if isinstance(error, TlsError) and not self._was_connected:
                raise
            self._trouble.failed(address, "cannot connect to", error)
            if isinstance(error, TlsError):
                # TLS worked before, so the operator of the broker may repair it; open producers wait.
                raise ConnectError(str(error)) from error
            raise
        self._was_connected = True
        self._handshakes.answered(address)
        self._refused.accepted()
        if connection.open:
            self._trouble.returned(address)
        log.debug("connected to %s:%d (%s)", host, port, machine.server_version)
        return connection

    async def _new_machine(self, host: str) -> ClientMachine:
        auth_data = await self._credentials.fresh(host)
        return ClientMachine(
            now=asyncio.get_running_loop().time(),
            keep_alive_s=self._keep_alive_s,
            auth_method=self._credentials.method,
            auth_data=auth_data,
        )

    def _forget(self, connection: BrokerConnection) -> None:
        address = connection.address
        if isinstance(connection.closed_by, RemoteProtocolError):
            self._violations[address] = self._violations.get(address, 0) + 1
        else:
            self._violations.pop(address, None)
        self._silent.pop(connection, None)
        self._own.pop(connection, None)
        if self.connections.get(connection.address) is not connection:
            return
        del self.connections[connection.address]
        if connection.in_use and connection.closed_by is not None and not self._closed:
            self._trouble.failed(connection.address, "lost the connection to", connection.closed_by)
        if self.hosts[self._next_host] == connection.address:
            self._rotate()

    def _rotate(self) -> None:
        self._next_host = (self._next_host + 1) % len(self.hosts)

    async def close(self, deadline: Deadline | None = None) -> None:
        """Send the bytes written before and end all connections; their users are notified of the loss."""
        self._closed = True
        open_now = [*self.connections.values(), *self._silent, *self._own]
        try:
            await self._dialing.stop()
            for connection in open_now:
                connection.close()
            if open_now:
                ended = [asyncio.ensure_future(connection.ended.wait()) for connection in open_now]
                await farewell(ended, deadline)
        finally:
            for connection in open_now:
                connection.pump.abort()
            await self._credentials.close(self.operation_timeout_s if deadline is None else deadline.left_s)


def new_pool(service_url: str, times: PoolTimes, more: ClientArguments) -> ConnectionPool:
    """Check the arguments and return a pool that is not connected yet."""
    refuse_unknown(more, ClientArguments)
    check_optional("rng", more.get("rng"), Random, "a random.Random")
    clock = more.get("clock")
    if clock is not None and not hasattr(clock, "wall_ms"):
        raise refused("clock", "a clock with wall_ms()", clock)
    return ConnectionPool(
        parse_service_url(service_url),
        times,
        authentication=checked_authentication(more.get("authentication")),
        tls=tls_of(service_url, TLS_SCHEME, more, more.get("authentication")),
        rng=more.get("rng") or Random(),
    )
