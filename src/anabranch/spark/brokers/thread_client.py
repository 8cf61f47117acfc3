"""The client of one thread, whose event loop runs only while a call waits.

Spark's Python workers do one thing at a time, so no second thread is needed: between calls the kernel buffers
the bytes that the broker sends. Workers and their clients outlive micro-batches and queries. If a connection
breaks between calls, the client replaces it the next time its loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.bulk.reading_client import ReadingClient
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.spark.options.credentials import SparkCredentials
from anabranch.spark.options.given import CREDENTIALS, Settings

if TYPE_CHECKING:
    # Imported late: Spark starts a process for each query that plans and never writes.
    from anabranch.client.bulk.bulk_client import BulkClient

T = TypeVar("T")


class ThreadClient:
    """A client that reads, one that writes if it is needed, and the event loop of both."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._loop = new_event_loop()
        self._bulk: BulkClient | None = None
        self._leaving: asyncio.Task[None] | None = None
        self.rng = Random()
        self.client, self.tails = self.run(self._open())

    async def _open(self) -> tuple[ReadingClient, SegmentTails]:
        # Both belong to the loop that is running when they are made.
        client = ReadingClient(self._url, **_client_arguments(self._settings))
        return client, client.tails()

    def bulk(self) -> BulkClient:
        """Return the client of writers and mirrors, made on first use. It has its own connections."""
        if self._bulk is None:
            self._bulk = new_bulk_client(self._url, self._settings)
        return self._bulk

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the event loop until the work is done."""
        return self._loop.run_until_complete(work)

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work now, or schedule it if the loop is running.

        Python may close an iterator at any moment, even while another call runs the loop.
        """
        if self._loop.is_running():
            self._leaving = self._loop.create_task(work)
        else:
            self.run(work)

    def close(self) -> None:
        """Close the clients and the event loop."""
        self.run(self.client.close())
        if self._bulk is not None:
            self.run(self._bulk.close())
        self._loop.close()


def new_bulk_client(url: str, settings: Settings) -> BulkClient:
    """Return a client that can write, for the event loop that first uses it. The caller closes it."""
    from anabranch.client.bulk.bulk_client import BulkClient

    return BulkClient(url, **_client_arguments(settings))


def _client_arguments(settings: Settings) -> dict[str, Any]:
    arguments = dict(settings)
    role: SparkCredentials | None = arguments.pop(CREDENTIALS, None)
    return {**arguments, "authentication": None if role is None else role.make()}
