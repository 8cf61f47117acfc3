"""Named steps at which a test may kill or stop the process, or make a step fail.

Production code awaits `reach("split.sealed")` between two effects; the default does nothing. `from_text`
parses the ANABRANCH_FAILPOINTS variable: `name=action[,name=action...]` with the actions `kill` (SIGKILL to
this process), `stop` (SIGSTOP) and `raise`. With `@FILE` each step reads the actions from a file; the first
process that reaches a step of the file removes the file and acts.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol


class Failpoints(Protocol):
    """Called by components at each named step."""

    async def reach(self, name: str) -> None:
        """Return at once, unless a test asked for an action at this step."""


class FailpointReachedError(RuntimeError):
    """Raised at a step that a test asked to fail."""


class NoFailpoints:
    """No step has an action."""

    async def reach(self, name: str) -> None:
        return None


class ProcessFailpoints:
    """Kills, stops or fails this operating-system process."""

    def __init__(self, actions: dict[str, str], file: Path | None = None) -> None:
        self._actions = actions
        self._file = file

    @classmethod
    def from_text(cls, text: str) -> ProcessFailpoints:
        if text.startswith("@"):
            return cls({}, Path(text[1:]))
        return cls(_parse(text))

    async def reach(self, name: str) -> None:
        action = self._actions.get(name) if self._file is None else self._take(name, self._file)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "raise":
            raise FailpointReachedError(name)

    def _take(self, name: str, file: Path) -> str | None:
        """Return the action of the file at this step; None if another process took it."""
        try:
            action = _parse(file.read_text()).get(name)
            if action is not None:
                file.unlink()
        except FileNotFoundError:
            return None
        return action


def _parse(text: str) -> dict[str, str]:
    actions: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, action = part.partition("=")
        if action not in ("kill", "stop", "raise"):
            raise ValueError(f"failpoint {part!r}: the action must be kill, stop or raise")
        actions[name] = action
    return actions
