"""A client for bulk readers alone: it loads neither producers nor consumers, so that it starts sooner."""

from __future__ import annotations

from typing import Unpack

from anabranch.client.consume.bulk_reading import BulkReading
from anabranch.client.net.new_pool import new_pool
from anabranch.client.net.timeouts import PoolTimes
from anabranch.client.options import ClientArguments, Seconds, seconds


class ReadingClient(BulkReading):
    """Reads segments and answers questions about topics; takes the arguments of the other clients."""

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        **more: Unpack[ClientArguments],
    ) -> None:
        times = PoolTimes(
            connect_s=seconds("connect_timeout", connect_timeout),
            operation_s=seconds("operation_timeout", operation_timeout),
            keep_alive_s=seconds("keep_alive_interval", keep_alive_interval),
        )
        super().__init__(service_url, new_pool(service_url, times, more))
