"""An `anabranch control` process beside the processes of a Pulsar cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simulation.harness.ports import free_port
from simulation.harness.pulsar.server_process import PulsarProcess

SESSION_S: Final = 4.0
"""After this time of silence another control process leads; short, for tests that wait for it."""
STEADY_SESSION_S: Final = 20.0
"""A session of this length survives a machine that stalls for some seconds."""


def session(seconds: float) -> tuple[str, str]:
    """Return the arguments of a command that set the length of its session."""
    return "--session-s", str(seconds)


class ControlServer(PulsarProcess):
    """One `anabranch control` on free ports of the loopback; a restart has the same addresses."""

    def __init__(
        self,
        scratch: Path,
        number: int,
        *,
        http_url: str,
        zookeeper_url: str,
        more: Sequence[str] = (),
    ) -> None:
        """`http_url` is the admin API of the cluster; `more` are further arguments of the command."""
        home = scratch / f"control-{number}"
        home.mkdir(parents=True, exist_ok=True)
        self.port, self.web_port = free_port(), free_port()
        command = [sys.executable, "-m", "anabranch.cli.main", "control"]
        command += ["--pulsar-admin", http_url, "--metadata", zookeeper_url]
        command += () if "--session-s" in more else session(STEADY_SESSION_S)
        command += ["--port", str(self.port), "--http-port", str(self.web_port)]
        command += more
        super().__init__(f"control-{number}", home, command, self._is_healthy)


def control_servers(
    scratch: Path, http_url: str, zookeeper_url: str, session_s: float = SESSION_S, count: int = 2
) -> list[ControlServer]:
    """Return control processes of one cluster, not started yet, with sessions of this length."""
    words = session(session_s)
    return [
        ControlServer(scratch, number, http_url=http_url, zookeeper_url=zookeeper_url, more=words)
        for number in range(count)
    ]
