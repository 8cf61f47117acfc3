"""The official Python, Go and Java clients with TLS and credentials, right and wrong, against our broker.

One broker accepts all methods on a plain and a TLS port. Each client is a probe: a process that takes a case
as a JSON line, exchanges messages on a topic, and answers with a JSON line. Only the Java client has the V5
API, so scalable topics are its cases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import bcrypt
import pytest

from anabranch import AuthenticationToken
from anabranch.admin.client import AdminClient
from simulation.harness.certificates import Authority, tls_settings
from simulation.harness.process import BrokerProcess
from tests.harness.issuer import Issuer
from tests.harness.security import SECURE, token_for
from tests.interop.building import JVM, go_program

# The first run downloads the clients.
pytestmark = pytest.mark.timeout(900)

ROLE, STRANGER, ADMIN = "app", "stranger", "admin"
PASSWORD, AUDIENCE = "right", "brokers"
CLASSIC, SCALABLE = "persistent://public/default/classic", "topic://public/default/scalable"
FOREIGN = {CLASSIC: "persistent://other/private/classic", SCALABLE: "topic://other/private/scalable"}
SHORT_S = 3.0
"""Lifetime of a token that expires under an open connection."""
REFRESH_S = 1.0
REFUSAL_S = 5
"""How long clients repeat an attempt that fails each time."""

Case = dict[str, Any]


class Outcome(NamedTuple):
    received: int
    error: str


class Probe:
    """A process that runs cases with one of the official clients."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def run(self, case: Case) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return Outcome(**json.loads(line))
        raise AssertionError(f"the probe ended with {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


class World:
    """A broker with all methods, an issuer, and the files of right and wrong credentials."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._numbers = count()
        self.authority = Authority(directory)
        self.impostor = Authority(directory, "another authority")
        self.issuer = stack.enter_context(Issuer({ROLE: "its secret"}))
        users = directory / "users"
        users.write_text(f"{ROLE}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
        users.chmod(0o600)
        settings = {
            **SECURE,
            **tls_settings(self.authority.server(), self.authority.file),
            "authentication_providers": "token,openid,tls,basic",
            "authentication_refresh_check_s": REFRESH_S,
            "basic_auth_file": users,
            "openid_issuers": self.issuer.url,
            "openid_audiences": AUDIENCE,
            "openid_require_https": False,
            "authorization": True,
            "superuser_roles": ADMIN,
        }
        self.broker = stack.enter_context(BrokerProcess(directory / "data", settings))
        credentials = AuthenticationToken(token_for(ADMIN))
        with AdminClient(self.broker.http_url, authentication=credentials) as admin:
            admin.call("PUT", "/admin/v2/tenants/other")
            admin.call("PUT", "/admin/v2/namespaces/other/private")
            path = f"/admin/v2/namespaces/public/default/permissions/{ROLE}"
            admin.call("POST", path, body=["produce", "consume"])

    def token_file(self, token: str) -> Path:
        file = self._directory / f"token-{next(self._numbers)}"
        file.write_text(token)
        return file

    def case(self, topic: str, method: str = "none", **params: object) -> Case:
        return {
            "url": self.broker.tls_url,
            "trust": self.authority.file,
            "topic": topic,
            "method": method,
            "params": {name: str(value) for name, value in params.items()},
            "subscription": f"probe-{next(self._numbers)}",
            "seconds": 0,
            "timeout_s": 30,
        }

    def token(self, topic: str, token: str) -> Case:
        return self.case(topic, "token", file=self.token_file(token))

    def certificate(self, topic: str, authority: Authority, role: str) -> Case:
        pair = authority.client(role, file=f"client-{next(self._numbers)}")
        return self.case(topic, "tls", certificate=pair.certificate, key=pair.key)

    def oauth2(self, topic: str, secret: str | None = None) -> Case:
        file = self._directory / f"key-{next(self._numbers)}.json"
        url = self.issuer.write_key_file(file, ROLE, secret)
        return self.case(topic, "oauth2", issuer=self.issuer.url, audience=AUDIENCE, key_file=url)


class RenewedToken:
    """A file whose token lives for SHORT_S and is replaced each second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._over.wait(1.0):
            self._write()

    def _write(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(token_for(ROLE, exp=time.time() + SHORT_S))
        draft.replace(self._file)


MakeCase = Callable[[World, str], Case]

RIGHT: dict[str, MakeCase] = {
    "token": lambda world, topic: world.token(topic, token_for(ROLE)),
    "token on the plain port": lambda world, topic: {
        **world.token(topic, token_for(ROLE)),
        "url": world.broker.url,
        "trust": "",
    },
    "certificate": lambda world, topic: world.certificate(topic, world.authority, ROLE),
    "basic": lambda world, topic: world.case(topic, "basic", user=ROLE, password=PASSWORD),
    "oauth2": lambda world, topic: world.oauth2(topic),
}

WRONG: dict[str, MakeCase] = {
    "no credentials": lambda world, topic: world.case(topic),
    "token with another key": lambda world, topic: world.token(topic, token_for(ROLE, key=b"x" * 64)),
    "expired token": lambda world, topic: world.token(topic, token_for(ROLE, exp=time.time() - 60)),
    "token of a role without rights": lambda world, topic: world.token(topic, token_for(STRANGER)),
    "topic of another tenant": lambda world, topic: world.token(FOREIGN[topic], token_for(ROLE)),
    "certificate of another authority": lambda world, topic: world.certificate(topic, world.impostor, ROLE),
    "certificate of a role without rights": lambda world, topic: world.certificate(
        topic, world.authority, STRANGER
    ),
    "basic with a wrong password": lambda world, topic: world.case(topic, "basic", user=ROLE, password="no"),
    "oauth2 with a wrong secret": lambda world, topic: world.oauth2(topic, "no"),
    "a broker that the client does not trust": lambda world, topic: {
        **world.token(topic, token_for(ROLE)),
        "trust": world.impostor.file,
    },
}

USERS = {"python": CLASSIC, "go": CLASSIC, "java": CLASSIC, "java v5": SCALABLE}
"""The official clients, and the topic of each."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("security"), stack)


@pytest.fixture(scope="module")
def probes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Probe]]:
    """The probe of each user, started when it is first needed."""
    made: dict[str, Probe] = {}

    def java() -> list[str]:
        return ["java", *JVM, "-cp", request.getfixturevalue("classpath"), "anabranch.Probe"]

    commands: dict[str, Callable[[], list[str]]] = {
        "python": lambda: [sys.executable, "-m", "tests.interop.python_probe"],
        "go": lambda: [str(go_program("probe"))],
        "java": java,
        "java v5": java,
    }

    def probe(user: str) -> Probe:
        if user not in made:
            log = tmp_path_factory.getbasetemp() / f"{user}.log"
            made[user] = Probe(commands[user](), log)
        return made[user]

    yield probe
    for one in made.values():
        one.close()


def at_once(probes: Callable[[str], Probe], make: Callable[[str], Case]) -> dict[str, Outcome]:
    """Run the case that `make` gives for a topic with each user, side by side: refusals take seconds."""
    cases = [(probes(user), make(topic)) for user, topic in USERS.items()]
    with ThreadPoolExecutor() as pool:
        outcomes = pool.map(lambda pair: pair[0].run(pair[1]), cases)
        return dict(zip(USERS, outcomes, strict=True))


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT.keys())
def test_right_credentials_are_accepted(probes: Callable[[str], Probe], world: World, make: MakeCase) -> None:
    accepted = Outcome(received=10, error="")
    assert at_once(probes, partial(make, world)) == dict.fromkeys(USERS, accepted)


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_wrong_credentials_are_refused(probes: Callable[[str], Probe], world: World, make: MakeCase) -> None:
    outcomes = at_once(probes, lambda topic: {**make(world, topic), "timeout_s": REFUSAL_S})
    for user, outcome in outcomes.items():
        assert outcome.received == 0, user
        assert outcome.error, user


def test_a_refreshed_token_keeps_a_client_connected(probes: Callable[[str], Probe], world: World) -> None:
    file = world.token_file("")
    seconds = 2 * (SHORT_S + REFRESH_S)
    with RenewedToken(file):
        outcomes = at_once(
            probes, lambda topic: {**world.case(topic, "token", file=file), "seconds": seconds}
        )
    for user, outcome in outcomes.items():
        assert outcome.error == "", user
        assert outcome.received > 10, user


def test_a_client_with_an_expired_token_is_disconnected(probes: Callable[[str], Probe], world: World) -> None:
    # A client that has run once connects long before its short token expires.
    at_once(probes, partial(RIGHT["token"], world))
    short = token_for(ROLE, exp=time.time() + SHORT_S)
    outcomes = at_once(
        probes, lambda topic: {**world.token(topic, short), "seconds": 60, "timeout_s": REFUSAL_S}
    )
    for user, outcome in outcomes.items():
        assert outcome.received > 0, user
        assert outcome.error, user
