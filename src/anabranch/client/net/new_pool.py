"""Makes the connections of a client from the arguments that applications give."""

from __future__ import annotations

from random import Random

from anabranch.arguments import check_optional, refuse_unknown, refused
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.timeouts import PoolTimes
from anabranch.client.options import ClientArguments, parse_service_url
from anabranch.credentials.asking import checked_authentication
from anabranch.transport.tls import TLS_SCHEME
from anabranch.transport.tls_arguments import tls_of


def new_pool(service_url: str, times: PoolTimes, more: ClientArguments) -> ConnectionPool:
    """Check the arguments and return a pool that is not connected yet."""
    refuse_unknown(more, ClientArguments)
    check_optional("rng", more.get("rng"), Random, "a random.Random")
    clock = more.get("clock")
    if clock is not None and not hasattr(clock, "wall_ms"):
        raise refused("clock", "a clock with wall_ms()", clock)
    return ConnectionPool(
        parse_service_url(service_url),
        times,
        authentication=checked_authentication(more.get("authentication")),
        tls=tls_of(service_url, TLS_SCHEME, more, more.get("authentication")),
        rng=more.get("rng") or Random(),
    )
