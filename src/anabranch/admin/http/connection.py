"""One HTTP connection: uvicorn's protocol, with a time limit for each part of a request.

A connection waits at the door of its port until its client has sent a whole request, so half a request never
keeps another client out. The limits are for a part as a whole: a client that sends one byte a second is late.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from anabranch.transport.certificates import peer_certificate
from anabranch.transport.door import Door

HEAD_BYTES_MAX: Final = 16 * 2**10
"""Largest head of a request, its path and query included."""

_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 64\r\n\r\n"
    b'{"reason":"the request was not complete in time; send it again"}'
)


class Part(Enum):
    """The part of an exchange that comes next."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    NEXT = "next"
    """The client may send another request; uvicorn closes the connection if it does not."""


class AdminConnection(H11Protocol):
    """Drops a client that is late with a part of its request, or with taking the answer."""

    def __init__(
        self, config: Config, state: ServerState, door: Door[AdminConnection], part_timeout_s: float
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._door = door
        self._part_timeout_s = part_timeout_s
        self._part = Part.NEXT
        self._timer: asyncio.TimerHandle | None = None
        self._aborted = False

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; also before the connection is made."""
        self._aborted = True
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Each request finds it in its scope, as `scope["state"]["certificate"]`.
        self.app_state["certificate"] = peer_certificate(transport)
        if self._aborted:
            transport.abort()
        self._expect(Part.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self._clear_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer(self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_timer()

    def _look(self) -> None:
        part = self._next_part()
        if part is not self._part and not self.transport.is_closing():
            self._expect(part)

    def _next_part(self) -> Part:
        state = self.conn.their_state
        if state is h11.IDLE:
            begun = self.cycle is None or self.conn.trailing_data[0]
            return Part.HEAD if begun else Part.NEXT
        return Part.BODY if state is h11.SEND_BODY else Part.ANSWER

    def _expect(self, part: Part) -> None:
        self._part = part
        self._clear_timer()
        if part is Part.ANSWER:
            self._door.settle(self)
            return
        self._door.wait_again(self)
        if part is not Part.NEXT:
            self._start_timer(self._refuse_late)

    def _refuse_late(self) -> None:
        if not self.transport.is_closing() and (self.cycle is None or not self.cycle.response_started):
            self.transport.write(_LATE)
            self.transport.close()
        else:
            self.abort()

    def _start_timer(self, action: Any) -> None:
        self._clear_timer()
        self._timer = self.loop.call_later(self._part_timeout_s, action)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
