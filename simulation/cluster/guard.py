"""Credentials and rights of a simulated cluster: brokers that check tokens, and clients that show them."""

from __future__ import annotations

import base64
import math
from typing import Any

import jwt

from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.credentials.authentication import AuthenticationToken
from anabranch.security.audit import NoAudit
from anabranch.security.configured import make_gate
from anabranch.security.gate import Gate

_KEY = b"the secret key of a simulated cluster, which is no secret at all"

GUARDED: dict[str, Any] = {
    "authentication": True,
    "authorization": True,
    "token_secret_key": f"data:;base64,{base64.b64encode(_KEY).decode()}",
    "authentication_refresh_check_s": 1.0,
}
"""Settings of brokers that accept the tokens of `SimGuard` and check rights."""


def gate_of(config: BrokerConfig, clock: Clock) -> Gate:
    """The gate of a simulated broker."""
    return make_gate(config, clock, NoAudit())


class SimGuard:
    """Issues the tokens of a run; each lives for `token_life_s`."""

    def __init__(self, clock: Clock, token_life_s: float = math.inf) -> None:
        self._clock = clock
        self._token_life_s = token_life_s

    def token(self, role: str) -> str:
        claims: dict[str, Any] = {"sub": role}
        if self._token_life_s < math.inf:
            claims["exp"] = self._clock.wall_ms() / 1000 + self._token_life_s
        return jwt.encode(claims, _KEY, algorithm="HS256")

    def authentication(self, role: str) -> AuthenticationToken:
        """Credentials of a client, fresh whenever they are asked for."""
        return AuthenticationToken(lambda: self.token(role))

    def shown(self, role: str) -> dict[str, Any]:
        """Credentials as arguments of a client's machine."""
        return {"auth_method": "token", "auth_data": self.token(role).encode()}
