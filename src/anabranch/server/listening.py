"""The listening sockets of a broker process: binary and HTTP ports, each plain and over TLS.

With several workers each port has one socket that all of them share, and one more for each worker alone.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from anabranch.config.broker import BrokerConfig
from anabranch.config.fields import OFF
from anabranch.errors import ConflictError

log = logging.getLogger(__name__)

BACKLOG = 1024
"""How many connections may wait to be accepted. The client of a further one retries after a second."""

OPTIONS = {"pulsar": "--port", "http": "--http-port", "pulsar+ssl": "--tls-port", "https": "--https-port"}
"""The option for the port of each scheme."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of one process by scheme; the first of each serves this process alone."""

    sockets: Mapping[str, list[socket.socket]] = field(default_factory=dict)

    def of(self, scheme: str) -> list[socket.socket]:
        return self.sockets.get(scheme, [])

    @property
    def own(self) -> list[socket.socket]:
        """The listeners that reach this process and no other."""
        return [found[0] for found in self.sockets.values()]

    def own_url(self, config: BrokerConfig, scheme: str) -> str:
        """The address of this process alone; empty if the port is switched off."""
        found = self.of(scheme)
        return _url(config, scheme, found[0]) if found else ""

    def service_urls(self, config: BrokerConfig) -> str:
        """The addresses for clients, separated by spaces."""
        return " ".join(_url(config, scheme, found[-1]) for scheme, found in self.sockets.items())

    def close(self) -> None:
        for found in self.sockets.values():
            for listener in found:
                listener.close()


def bind(config: BrokerConfig) -> Listeners:
    """Listen on all ports that are switched on."""
    return Listeners(
        {scheme: [listen(config.host, port, OPTIONS[scheme])] for scheme, port in _ports(config).items()}
    )


def bind_workers(config: BrokerConfig, stack: ExitStack) -> list[Listeners]:
    """The listeners of each worker: its own ones, and those that all share; `stack` closes them."""
    shared = bind(config)
    stack.callback(shared.close)
    ports = own_ports(_ports(config), config.workers)
    workers = []
    for number in range(config.workers):
        own = {scheme: stack.enter_context(_own(config, ports[scheme][number])) for scheme in ports}
        workers.append(Listeners({scheme: [own[scheme], *shared.of(scheme)] for scheme in own}))
    return workers


def own_ports(shared: Mapping[str, int], workers: int) -> dict[str, list[int]]:
    """Return the own ports of each worker by scheme: those after the shared port, or 0 for any free port."""
    taken = set(shared.values())
    found: dict[str, list[int]] = {}
    for scheme, port in shared.items():
        found[scheme] = own = []
        for _ in range(workers):
            port = next(free for free in range(port + 1, port + 10_000) if free not in taken) if port else 0
            taken.add(port)
            own.append(port)
    return found


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket; connections wait in its backlog until they are accepted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"port {port} on {host} is in use; stop the process that has it, or choose another with "
                f"{option} (0 picks a free one)"
            ) from error
        raise
    listener.setblocking(False)
    return listener


def _own(config: BrokerConfig, port: int) -> socket.socket:
    """The listener of one worker; on any free port if its own is taken."""
    if port:
        try:
            return listen(config.host, port, "--port")
        except (ConflictError, OverflowError):
            log.warning("port %d is not free; a worker listens on another port", port)
    return listen(config.host, 0, "--port")


def _ports(config: BrokerConfig) -> dict[str, int]:
    ports = (config.port, config.http_port, config.tls_port, config.https_port)
    return {scheme: port for scheme, port in zip(OPTIONS, ports, strict=True) if port != OFF}


def _url(config: BrokerConfig, scheme: str, listener: socket.socket) -> str:
    return config.url_of(scheme, listener.getsockname()[1])
