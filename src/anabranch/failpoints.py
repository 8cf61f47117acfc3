"""Named steps at which a test may kill, stop or fail the process.

Production code awaits `reach("split.sealed")` between two effects; the default does nothing. `from_text`
reads the form of the ANABRANCH_FAILPOINTS variable: `name=action[,name=action...]` with the actions `kill`
(SIGKILL to this process), `stop` (SIGSTOP) and `raise`. With `@FILE` the same is read from a file whenever a
step is reached, so that a test may choose while processes run. Whichever process comes first to a step of the
file removes it, and acts: it happens once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Protocol


class Failpoints(Protocol):
    """What a component calls at each named step."""

    async def reach(self, name: str) -> None:
        """Return at once, unless a test wants something to happen at this step."""
        ...


class FailpointReachedError(RuntimeError):
    """Raised at a step that a test asked to fail."""


class NoFailpoints:
    """Nothing happens anywhere."""

    async def reach(self, name: str) -> None:
        return None


class ProcessFailpoints:
    """Acts on this operating-system process."""

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
        """What the file wants here, if no other process was faster."""
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
