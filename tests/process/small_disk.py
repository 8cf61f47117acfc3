"""A real file system of a few megabytes: a tmpfs in a mount namespace of its own, so no rights are needed.

A process keeps the namespace open. Brokers enter it with `nsenter`, and tests reach its files through that
process in /proc. Nothing stays mounted when the process has ended.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_KEEPER = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec sleep infinity'


class SmallDisk:
    """A file system of `size_bytes` at `root`, for the processes that are started with `entrance`."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        root.mkdir()
        self.root = root
        self._keeper = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", _KEEPER, "sh", str(size_bytes), str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline().strip()
        if answer != "mounted":
            self.close()
            raise RuntimeError(
                f"this kernel refuses a small file system: {answer!r}; user namespaces must be allowed"
            )
        self.entrance = ("nsenter", "-t", str(self._keeper.pid), "-U", "-m", "--preserve-credentials")
        self.inside = Path(f"/proc/{self._keeper.pid}/root{root}")
        """The root as this process reaches it."""

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.inside)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but `leave_bytes` with a file of another program."""
        with (self.inside / "filler").open("ab") as filler:
            wanted = self.free_bytes - leave_bytes
            if wanted > 0:
                os.posix_fallocate(filler.fileno(), filler.tell(), wanted)

    def free(self) -> None:
        """Remove that file."""
        (self.inside / "filler").unlink()

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
