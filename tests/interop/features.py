"""The brokers, keys and admin calls for tests of the features of official clients."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from simulation.harness.process import BrokerProcess

FAST = bool(os.environ.get("INTEROP_FAST"))
WORKERS = [2] if FAST else [1, 2]
"""The short form runs each feature on two workers only."""
FORMS = {1: "one-process", 2: "two-workers"}

each_form = pytest.fixture(scope="module", params=WORKERS, ids=FORMS.get)
"""Makes a fixture of a module, whose parameter is the number of workers."""

_numbers = count(1)


@contextmanager
def served(tmp: pytest.TempPathFactory, workers: int) -> Iterator[BrokerProcess]:
    """A broker for all features of a module; each uses topics of its own."""
    with BrokerProcess(tmp.mktemp("features") / "data", {"workers": workers}) as process:
        yield process


def new_topic(word: str, scheme: str = "persistent") -> str:
    """The name of a topic that no other case uses."""
    return f"{scheme}://public/default/{word}-{next(_numbers)}"


class RsaKeys(NamedTuple):
    """The files of a key pair for end-to-end encryption."""

    public: Path
    private: Path


def make_keys(directory: Path) -> RsaKeys:
    keys = RsaKeys(directory / "public.pem", directory / "private.pem")
    # The Go client reads private keys of PKCS #1 only.
    run = ["openssl", "genrsa", "-traditional", "-out", str(keys.private), "2048"]
    subprocess.run(run, check=True, capture_output=True)
    made = ["openssl", "pkey", "-in", str(keys.private), "-pubout", "-out", str(keys.public)]
    subprocess.run(made, check=True, capture_output=True)
    return keys


def put(broker: BrokerProcess, path: str, body: bytes) -> None:
    """Make something by the REST API."""
    request = urllib.request.Request(f"{broker.http_url}/admin/v2/{path}", body, method="PUT")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 204
