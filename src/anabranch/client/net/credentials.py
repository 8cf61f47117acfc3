"""The credentials of one client: asked afresh for each connection, and when a broker asks again."""

from __future__ import annotations

from random import Random

from anabranch.aio import Backoff, TaskRegistry, retry
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.options import log
from anabranch.credentials.asking import REFRESH, close, proof, renew
from anabranch.credentials.authentication import Authentication
from anabranch.errors import AnabranchError

AGAIN = Backoff(0.1, 2.0)
"""Waits between questions to an issuer that is out of order, while a broker waits for the answer."""


class Credentials:
    """Asks `authentication`, if there is one, and gives up after `timeout_s`."""

    def __init__(self, authentication: Authentication | None, timeout_s: float, rng: Random) -> None:
        self._authentication = authentication
        self._timeout_s = timeout_s
        self._rng = rng
        self._answers = TaskRegistry()
        self._answering: dict[BrokerConnection, None] = {}
        """Connections whose broker waits for an answer."""

    @property
    def method(self) -> str:
        return "none" if self._authentication is None else self._authentication.method_name

    async def fresh(self, host: str, challenge: bytes = REFRESH) -> bytes:
        """Credentials for a new connection, or the answer to a challenge; raises AuthenticationError."""
        if self._authentication is None:
            return b""
        return await proof(self._authentication, host, self._timeout_s, challenge)

    def refused(self) -> None:
        """Let the next credentials be new ones, because a broker refused the last ones."""
        if self._authentication is not None:
            renew(self._authentication)

    def answer(self, connection: BrokerConnection, challenge: bytes) -> None:
        """Answer a challenge of the broker in the background; without credentials end the connection."""
        if connection not in self._answering:
            self._answering[connection] = None
            self._answers.spawn(self._answer(connection, challenge), f"credentials for {connection.peer}")

    async def _answer(self, connection: BrokerConnection, challenge: bytes) -> None:
        host = connection.address[0]
        self.refused()
        try:
            data = await retry(
                lambda: self.fresh(host, challenge),
                what=f"asking for credentials for {connection.peer}",
                within_s=self._timeout_s,
                backoff=AGAIN,
                rng=self._rng,
            )
            connection.pump.write(connection.machine.auth_response(data))
            log.debug("sent fresh credentials to %s", connection.peer)
        except AnabranchError as error:
            connection.pump.close(error)
        finally:
            self._answering.pop(connection, None)

    async def close(self, timeout_s: float) -> None:
        """Stop answering, and let the credentials end."""
        await self._answers.stop()
        if self._authentication is not None:
            problem = await close(self._authentication, min(timeout_s, self._timeout_s))
            if problem is not None:
                log.warning("%s", problem)
