"""A real Pulsar beside us: its jars from Maven Central, and one standalone process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from simulation.harness.pulsar.jars import PulsarJars, UnresolvedError
from simulation.harness.pulsar.standalone import FAST_JVM, PulsarStandalone

VERSION: Final = "5.0.0-M1"
"""The version of Pulsar that Anabranch is compared with."""
PEER: Final = f"Pulsar {VERSION}"


class PulsarServer(NamedTuple):
    """The addresses of a running Pulsar."""

    url: str
    http_url: str


class PulsarPeer:
    """Pulsar's jars, ready to start."""

    def __init__(self, jars: PulsarJars) -> None:
        self._jars = jars

    @classmethod
    def find(cls, version: str = VERSION) -> PulsarPeer | None:
        """Resolve the jars once; None, with a line on standard error, if that is not possible."""
        try:
            return cls(PulsarJars.resolve(version))
        except UnresolvedError as error:
            print(f"{error}; continuing without it", file=sys.stderr)
            return None

    @contextlib.contextmanager
    def started(
        self,
        scratch: Path,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = FAST_JVM,
    ) -> Iterator[PulsarServer]:
        """Run a standalone Pulsar, with these settings on top of the defaults of this harness."""
        server = PulsarStandalone(self._jars, scratch, settings, jvm)
        try:
            server.start()
            yield PulsarServer(server.url, server.http_url)
        finally:
            server.kill()
