"""A gate with the real methods on the virtual clock; threads and issuers are those of the test."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from anabranch.config.broker import BrokerConfig
from anabranch.errors import CredentialsUnavailableError
from anabranch.rights.callers import Caller
from anabranch.security.authentication import Shown
from anabranch.security.configured import make_gate
from anabranch.security.gate import Gate, Original
from anabranch.security.outside import Outside
from anabranch.security.refusals import RefusedCredentialsError
from anabranch.transport.certificates import PeerCertificate
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from tests.harness.security import KeptAudit

T = TypeVar("T")

ADDRESS = "10.0.0.1:50000"


class TestedGate:
    """A gate with settings, and what it asks the world for."""

    __test__ = False

    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimClock(loop)
        self.audit = KeptAudit()
        self.documents: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.hashes = 0
        self.hash_s = 0.0
        self._gate: Gate | None = None

    def use(self, **settings: Any) -> TestedGate:
        outside = Outside(self._fetch, self._run_aside, lambda size: b"r" * size)
        config = BrokerConfig(**{"authentication": True, **settings})
        self._gate = make_gate(config, self.clock, self.audit, outside)
        return self

    @property
    def now_s(self) -> float:
        return self.clock.wall_ms() / 1000

    async def prove(
        self,
        method: str,
        credentials: bytes | str = b"",
        *,
        address: str = ADDRESS,
        certificate: PeerCertificate | None = None,
        original: Original = Original(),  # noqa: B008
    ) -> Caller:
        assert self._gate is not None
        data = credentials.encode() if isinstance(credentials, str) else credentials
        return await self._gate.admit(Shown(method, data, address, certificate), "CONNECT", original)

    async def token(self, token: str) -> Caller:
        return await self.prove("token", token)

    async def refusal(self, method: str, credentials: bytes | str = b"", **options: Any) -> str:
        """Return the reason in the audit log for which credentials are refused."""
        with pytest.raises(RefusedCredentialsError) as caught:
            await self.prove(method, credentials, **options)
        assert str(caught.value) == "authentication failed"
        return self.audit.reasons[-1]

    async def _fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        await asyncio.sleep(0.1)
        if url not in self.documents:
            raise CredentialsUnavailableError(f"{url} cannot be read")
        return self.documents[url]

    async def _run_aside(self, work: Callable[[], T]) -> T:
        self.hashes += 1
        await asyncio.sleep(self.hash_s)
        return work()


def data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"
