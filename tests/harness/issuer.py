"""A small real issuer of OAuth2 tokens on loopback: OpenID discovery, JWKS, client credentials, RS256.

It answers over HTTP from a thread of its own. A test lists its clients, rotates its keys and lets it fail.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Json = dict[str, Any]


class Issuer:
    """Issues tokens to `clients`, which maps client ids to client secrets; a client id is the role."""

    def __init__(
        self, clients: Mapping[str, str], *, expires_s: float = 3600.0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.clients = dict(clients)
        self.expires_s = expires_s
        self.answer_status: int | None = None
        """The status of every answer, as if the issuer were broken; None while it is fine."""
        self.forms: list[dict[str, str]] = []
        """The form of each request for a token."""
        self.paths: list[str] = []
        """The path of each request."""
        self._keys: dict[str, RSAPrivateKey] = {}
        self._rotations = 0
        self._tls = tls
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.rotate()

    @property
    def url(self) -> str:
        """The issuer URL, which clients and brokers are configured with."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rotate(self, *, keep_old: bool = True) -> None:
        """Sign with a new key from now on; without `keep_old` tokens of older keys become invalid."""
        if not keep_old:
            self._keys.clear()
        self._rotations += 1
        self._keys[f"key-{self._rotations}"] = generate_private_key(public_exponent=65537, key_size=2048)

    def token(self, role: str, *, expires_s: float | None = None, **claims: object) -> str:
        """A signed token of a role; it may be expired already."""
        now = time.time()
        lifetime_s = self.expires_s if expires_s is None else expires_s
        content = {"iss": self.url, "sub": role, "iat": int(now), "exp": now + lifetime_s, **claims}
        key_id, key = list(self._keys.items())[-1]
        return jwt.encode(content, key, algorithm="RS256", headers={"kid": key_id})

    def write_key_file(self, path: Path, client_id: str, secret: str | None = None) -> str:
        """Write Pulsar's key file of a client; return its file:// URL."""
        content = {
            "type": "client_credentials",
            "client_id": client_id,
            "client_secret": self.clients[client_id] if secret is None else secret,
            "issuer_url": self.url,
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path.absolute().as_uri()

    def public_key(self) -> bytes:
        """The newest public key as PEM."""
        newest = list(self._keys.values())[-1].public_key()
        return newest.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def jwks(self) -> Json:
        """The public keys as the JWKS endpoint answers them."""
        algorithm = jwt.get_algorithm_by_name("RS256")
        return {
            "keys": [
                {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": id_, "alg": "RS256", "use": "sig"}
                for id_, key in self._keys.items()
            ]
        }

    def discovery(self) -> Json:
        return {"issuer": self.url, "token_endpoint": f"{self.url}/oauth/token", "jwks_uri": self.jwks_url}

    def grant(self, form: dict[str, str]) -> tuple[int, Json]:
        """Answer a request for a token: HTTP status and content."""
        self.forms.append(form)
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        client_id = form.get("client_id", "")
        if client_id not in self.clients or self.clients[client_id] != form.get("client_secret"):
            return 401, {"error": "invalid_client", "error_description": "unknown client or wrong secret"}
        claims: dict[str, Any] = {"aud": form["audience"]} if form.get("audience") else {}
        token = self.token(client_id, **claims)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.expires_s)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                documents = {"/.well-known/openid-configuration": issuer.discovery, "/jwks": issuer.jwks}
                make = documents.get(self.path)
                self._answer(*((404, {"error": "not_found"}) if make is None else (200, make())))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                self._answer(*issuer.grant(dict(parse_qsl(body.decode()))))

            def _answer(self, status: int, content: Json) -> None:
                issuer.paths.append(self.path)
                data = json.dumps(content).encode()
                self.send_response(issuer.answer_status or status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Keep the output of tests clean."""

        return Handler
