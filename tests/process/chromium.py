"""A real Chromium, driven by the pages that it opens: each page reports to the server of the test."""

from __future__ import annotations

import http.server
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
"""A browser on a busy machine takes its time; a quiet machine needs three seconds."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Newer browsers ask a person before a page may reach this machine; the broker must not rely on it.
    "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessChecks",
)


def find_chromium() -> str:
    """The browser binary; ANABRANCH_CHROMIUM names another one than `chromium`."""
    wanted = os.environ.get("ANABRANCH_CHROMIUM", "chromium")
    found = shutil.which(wanted)
    assert found is not None, (
        f"there is no {wanted}: run `make chromium` as root, or let ANABRANCH_CHROMIUM name a browser"
    )
    return found


@contextmanager
def chromium(url: str, profile: Path, hosts: Mapping[str, str]) -> Iterator[None]:
    """Open a page; `hosts` says which address each name has."""
    rules = ",".join(f"MAP {name} {address}" for name, address in hosts.items())
    command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", f"--host-resolver-rules={rules}", url]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    ) as browser:
        try:
            yield
        finally:
            os.killpg(browser.pid, signal.SIGKILL)


class SiteServer(http.server.ThreadingHTTPServer):
    """A server that says nothing when a browser is killed in the middle of a request."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


class EvilSite:
    """A web site of an attacker: serves one page, takes its report, and passes other requests on."""

    def __init__(self, page: str, forward_to: int | None = None) -> None:
        """`forward_to` is the port of the broker that the site's name leads to after the page is loaded."""
        self.page = page
        self.forward_to = forward_to
        self.reached: list[str] = []
        """Requests that came through: a browser sends these although their site does not want them."""
        self._reports: queue.Queue[dict[str, str]] = queue.Queue()

    def report(self) -> dict[str, str]:
        """The outcome of each attempt of the page."""
        return self._reports.get(timeout=PATIENCE_S)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        if request.path == "/page":
            _reply(request, self.page.encode(), "text/html")
        elif request.path == "/report":
            self._reports.put(json.loads(body))
            _reply(request, b"", "text/plain")
        elif self.forward_to is not None:
            self._forward(request, body, self.forward_to)
        else:
            self.reached.append(f"{request.command} {request.path}")
            _reply(request, b"", "text/plain")

    def _forward(self, request: http.server.BaseHTTPRequestHandler, body: bytes, port: int) -> None:
        """Send the request to the broker as it came, like a browser after a DNS record has changed."""
        head = f"{request.requestline}\r\n{request.headers.as_string()}".replace("\r\n", "\n")
        head = head.rstrip("\n").replace("\n", "\r\n").replace("keep-alive", "close")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as broker:
            broker.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)
            while data := broker.recv(2**16):
                request.wfile.write(data)
        request.close_connection = True

    @contextmanager
    def serve(self, address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
        """Serve the site; yields its port."""
        site = self

        class SiteHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                site.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
            setattr(SiteHandler, f"do_{method}", SiteHandler.handle_any)
        with SiteServer((address, port), SiteHandler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


def _reply(request: http.server.BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
    request.send_response(200)
    request.send_header("content-type", kind)
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def page_of(*attempts: str) -> str:
    """A page that makes each attempt, a JavaScript expression of a name and a function, and reports."""
    return f"""<!doctype html><meta charset="utf-8"><body><script>
const report = {{}};
async function attempt(name, work) {{
  try {{ report[name] = String(await work()); }} catch (error) {{ report[name] = "error: " + error; }}
}}
function submit(action) {{
  return new Promise(done => {{
    const frame = document.createElement("iframe"), form = document.createElement("form");
    frame.name = "frame" + Math.random();
    document.body.append(frame, form);
    Object.assign(form, {{ method: "POST", action, target: frame.name }});
    frame.onload = () => {{ if (form.sent) done("submitted"); }};
    form.sent = true;
    form.submit();
    // An answer without content loads nothing.
    setTimeout(() => done("submitted"), 5000);
  }});
}}
(async () => {{
  {" ".join(f"await attempt({one});" for one in attempts)}
  await fetch("/report", {{ method: "POST", body: JSON.stringify(report) }});
}})();
</script></body>"""
