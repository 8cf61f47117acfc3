"""The blocking client: the methods of the asyncio client, and no deadlock for a caller that mixes both."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

import anabranch
from anabranch.client import blocking
from anabranch.client.api import AsyncClient
from anabranch.errors import InvalidConfigurationError, InvalidServiceUrlError
from tests.harness.public import methods, properties

PAIRS: list[tuple[type, type]] = [
    (blocking.Client, AsyncClient),
    (blocking.Producer, anabranch.AsyncProducer),
    (blocking.StreamConsumer, anabranch.AsyncStreamConsumer),
    (blocking.QueueConsumer, anabranch.AsyncQueueConsumer),
    (blocking.TopicsConsumer, anabranch.AsyncTopicsConsumer),
    (blocking.CheckpointConsumer, anabranch.AsyncCheckpointConsumer),
]


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize(("face", "twin"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_blocking_class_mirrors_its_twin(face: type, twin: type) -> None:
    assert sorted(methods(face)) == sorted(methods(twin))
    # What is a plain attribute of the twin is a property here, because the twin lives in another thread.
    assert properties(twin) <= properties(face)
    for name, method in methods(twin).items():
        assert parameters(methods(face)[name]) == parameters(method), name
        assert method.__doc__ is None or methods(face)[name].__doc__ is not None, name


@pytest.mark.parametrize(("face", "twin"), PAIRS[:1], ids=["Client"])
def test_clients_take_the_same_settings(face: type, twin: type) -> None:
    assert parameters(face) == parameters(twin)


def test_both_faces_iterate_and_close_by_with() -> None:
    for face, twin in PAIRS[2:]:
        assert hasattr(twin, "__aiter__")
        for name in ("__iter__", "__next__", "__enter__", "__exit__"):
            assert hasattr(face, name)


def test_nothing_is_started_before_the_first_call() -> None:
    before = threading.active_count()
    client = anabranch.Client("pulsar://127.0.0.1:1")
    assert threading.active_count() == before
    assert not client.closed
    with pytest.raises(InvalidServiceUrlError):
        anabranch.Client("http://127.0.0.1:8080")


@pytest.mark.real_time
async def test_a_blocking_call_inside_a_loop_runs_as_any_other() -> None:
    with (
        anabranch.Client("pulsar://127.0.0.1:1", connect_timeout=0.1, operation_timeout=0.1) as client,
        pytest.raises(TimeoutError),
    ):
        client.create_producer("t")


def test_a_client_made_before_fork_refuses() -> None:
    client = anabranch.Client("pulsar://127.0.0.1:1", connect_timeout=0.1, operation_timeout=0.1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.create_producer("t")
        except InvalidConfigurationError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "fork" in pipe.read()


def test_importing_the_package_is_cheap() -> None:
    heavy = ("asyncio", "google.protobuf", "msgspec")
    code = f"import sys, anabranch; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    assert sorted(anabranch.__all__) == dir(anabranch)
    for name in anabranch.__all__:
        assert getattr(anabranch, name).__name__ == name
    with pytest.raises(AttributeError):
        anabranch.nonsense  # type: ignore[attr-defined]  # noqa: B018 - looking is the point
