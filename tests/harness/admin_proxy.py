"""Stands between control processes and the admin API of a Pulsar cluster, and sees each call of theirs."""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

REDIRECTS_MAX = 5
CALL_S = 30.0


class TerminateTrap:
    """A function that runs once, while the next call of `POST /terminate` is under way."""

    def __init__(self, spring: Callable[[str], None], delay_s: float) -> None:
        """`spring` gets the address of the broker that has the call; `delay_s` after the call was sent."""
        self._spring = spring
        self._delay_s = delay_s
        self._taken = threading.Lock()
        self.sprung = threading.Event()

    def enter(self, address: str) -> None:
        if self._taken.acquire(blocking=False):
            threading.Timer(self._delay_s, self._run, (address,)).start()

    def _run(self, address: str) -> None:
        self._spring(address)
        self.sprung.set()


class AdminProxy:
    """A proxy on a free port of the loopback; it follows redirects itself, so that it sees every call."""

    def __init__(self, brokers: Callable[[], list[str]]) -> None:
        """`brokers` returns the `host:port` of the brokers that live."""
        self.brokers = brokers
        self.trap: TerminateTrap | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class ProxiedCall(BaseHTTPRequestHandler):
            """One call, which fails without an answer if its broker does."""

            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    status, kind, answer = proxy.forward(
                        self.command, self.path, body, dict(self.headers.items())
                    )
                except (OSError, http.client.HTTPException, IndexError):
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                """Write nothing."""

        return ProxiedCall

    def forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """The answer of the broker that has the topic: status, type of its content, and content."""
        kept = {name: value for name, value in headers.items() if name.lower() in ("accept", "content-type")}
        address, trap = self.brokers()[0], self.trap
        if trap is not None and method == "POST" and path.endswith("/terminate"):
            # A broker that is not the owner would answer with a redirect before the trap springs.
            address = self._follow(address, "GET", path.removesuffix("/terminate") + "/stats", b"", kept)[0]
            trap.enter(address)
        return self._follow(address, method, path, body, kept)[1]

    def _follow(
        self, address: str, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[str, tuple[int, str, bytes]]:
        """Send a call and follow redirects; returns the address that answered, and its answer."""
        for _ in range(REDIRECTS_MAX):
            connection = http.client.HTTPConnection(address, timeout=CALL_S)
            try:
                connection.request(method, path, body or None, headers)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            if answer.status != http.client.TEMPORARY_REDIRECT:
                kind = answer.getheader("Content-Type") or "application/json"
                return address, (answer.status, kind, content)
            to = urllib.parse.urlsplit(answer.getheader("Location") or "")
            address, path = to.netloc, to.path + (f"?{to.query}" if to.query else "")
        raise http.client.HTTPException(f"{path} was redirected too often")
