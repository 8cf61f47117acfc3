"""The cost of CONNECT in the broker, with and without a token: CPU time of a connection and its close."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from anabranch.protocol import commands
from anabranch.protocol.commands import CommandCutter
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.methods import issuing
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

CONNECTIONS = 2000
WARM_UP = 50
TOKEN_MS_MAX = 2.0
ALGORITHMS = ("HS256", "RS256", "ES256")


def run(scratch: Path, fast: bool) -> list[Row]:
    count = CONNECTIONS // 10 if fast else CONNECTIONS
    plain = _measure(scratch / "plain", {}, "", count)
    figures = {}
    for algorithm in ALGORITHMS:
        settings, token = _secured(scratch, algorithm)
        figures[algorithm] = _measure(scratch / algorithm, settings, token, count)
    worst = max(figures.values())
    return [
        Row(
            "CONNECT with a token, CPU of the broker",
            "ms",
            worst,
            "without authentication",
            plain,
            goal=f"under {TOKEN_MS_MAX:g} ms",
            series=figures,
            met=worst < TOKEN_MS_MAX,
        )
    ]


def _secured(scratch: Path, algorithm: str) -> tuple[dict[str, object], str]:
    """The settings of a broker, and a token that it accepts."""
    file = scratch / f"{algorithm}.key"
    if algorithm.startswith("HS"):
        secret = os.urandom(issuing.secret_bytes_of(algorithm))
        file.write_bytes(secret)
        setting, key = "token_secret_key", issuing.signing_secret(secret)
    else:
        pair = issuing.make_key_pair(algorithm)
        file.write_bytes(pair.public)
        setting, key = "token_public_key", issuing.signing_private_key(pair.private)
    return {"authentication": "true", setting: file}, issuing.sign({"sub": "bench"}, key)


def _measure(data: Path, settings: dict[str, object], token: str, count: int) -> float:
    """The CPU time of a broker per connection, in milliseconds."""
    method = "token" if token else "none"
    frame = commands.encode(
        pb.CommandConnect(
            client_version="bench", protocol_version=21, auth_method_name=method, auth_data=token.encode()
        )
    )
    with BrokerProcess(data, settings) as broker:
        _repeat(WARM_UP, lambda: _connect(broker.port, frame))
        before_s = _cpu_s(broker.pid)
        _repeat(count, lambda: _connect(broker.port, frame))
        return (_cpu_s(broker.pid) - before_s) / count * 1e3


def _repeat(times: int, work: Callable[[], None]) -> None:
    for _ in range(times):
        work()


def _connect(port: int, frame: bytes) -> None:
    cutter = CommandCutter()
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(frame)
        answers: list[object] = []
        while not answers:
            answers += cutter.read(link.recv(4096))
    assert isinstance(answers[0], pb.CommandConnected), answers[0]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
