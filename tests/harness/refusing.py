"""A scripted broker that looks at credentials and rights, and refuses as its test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.credentials.asking import REFRESH
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.hostile import Answer, Answers, HostileBroker, connected


def refusal(
    request_id: int = NO_ID, code: pb.ServerError.ValueType = pb.AuthenticationError
) -> pb.CommandError:
    return pb.CommandError(request_id=request_id, error=code, message="refused by the test")


def challenge(data: bytes = REFRESH) -> pb.CommandAuthChallenge:
    return pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="token", auth_data=data))


class RefusingBroker(HostileBroker):
    """Notes the credentials that it gets; `accepts` judges those of CONNECT."""

    def __init__(self, lies: Answers | None = None) -> None:
        self.shown: list[tuple[str, bytes]] = []
        """Method and credentials of each CONNECT."""
        self.answers: list[bytes] = []
        """The credentials of each AUTH_RESPONSE."""
        self.accepts: Callable[[bytes], bool] = lambda _: True
        super().__init__(
            {pb.CommandConnect: self._connect, pb.CommandAuthResponse: self._note, **(lies or {})}
        )

    def _connect(self, command: pb.CommandConnect) -> Answer:
        self.shown.append((command.auth_method_name, command.auth_data))
        return [connected() if self.accepts(command.auth_data) else refusal()]

    def _note(self, command: pb.CommandAuthResponse) -> Answer:
        self.answers.append(command.response.auth_data)
        return []


def numbered() -> Callable[[], str]:
    """A supplier of tokens that never returns one twice: token-1, token-2..."""
    issued: list[Any] = []

    def supply() -> str:
        issued.append(None)
        return f"token-{len(issued)}"

    return supply
