"""A pytest plugin that runs `async def` tests and fixtures on virtual time, or on a real event loop.

`tests/conftest.py` loads it. Do not combine it with another plugin that runs asynchronous tests.

- `async def test_x()` runs on a `SimLoop`: a sleep takes no real time, and one seed gives one order.
- `@pytest.mark.virtual_time(seed=..., limit_s=..., errors=[...])` sets the seed and the limit of virtual
  time, and announces unhandled errors by regular expressions. A parameter called `seed` is the seed too.
- `@pytest.mark.real_time` runs the test on an ordinary event loop, for threads, sockets and processes.
- The fixture `loop` is the event loop of the test. Asynchronous fixtures of function scope run on it too.

A test fails if its loop was handed an error that no task handled, or if its tasks wait for each other for
ever. Each example of a hypothesis test runs on a fresh loop. The plugin must not know the code under test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from simulation.world.loop import SimLoop

T = TypeVar("T")

SEED = 1
LIMIT_S = 3600.0
"""Virtual seconds of one test, and of each set-up and tear-down, unless its marker says otherwise."""


class VirtualRuntime:
    """Runs coroutines on a `SimLoop`, each within a limit of virtual time."""

    def __init__(self, seed: int | str, limit_s: float = LIMIT_S) -> None:
        self.loop = SimLoop(seed)
        self.errors = self.loop.errors
        self._limit_s = limit_s

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(main, limit_s=self._limit_s)

    def close(self) -> None:
        self.loop.close()


class RealRuntime:
    """Runs coroutines on an ordinary event loop, for tests with threads, sockets, files or processes."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.loop = self._runner.get_loop()
        self.errors: list[str] = []
        self.loop.set_exception_handler(self._note_error)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}" if error else context["message"])

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(main)

    def close(self) -> None:
        self._runner.close()


Runtime = VirtualRuntime | RealRuntime
"""One event loop, and the errors that no task on it handled."""

RUNTIME = pytest.StashKey[Runtime]()

REPORTED = pytest.StashKey[list[str]]()
"""Unhandled errors that the call of the test has compared with the expected ones."""


def marker_options(node: pytest.Item, name: str) -> dict[str, Any]:
    """Keyword arguments of a test's markers with this name; the closest marker wins."""
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(name))):
        options.update(marker.kwargs)
    return options


def make_runtime(node: pytest.Item, seed: int | str) -> Runtime:
    """A fresh loop of the kind that the markers of the test ask for."""
    if node.get_closest_marker("real_time") is not None:
        return RealRuntime()
    options = marker_options(node, "virtual_time")
    return VirtualRuntime(seed, options.get("limit_s", LIMIT_S))


def expected_errors(node: pytest.Item) -> Sequence[str]:
    """Return a regular expression for each unhandled error that the marker of a test announces."""
    return list(marker_options(node, "virtual_time").get("errors", ()))


def check_errors(runtime: Runtime, expected: Sequence[str]) -> None:
    """Fail unless the unhandled errors of a loop fit the expected patterns, one by one."""
    found = runtime.errors
    fits = len(found) == len(expected) and all(map(re.search, expected, found))
    if not fits:
        errors = "\n".join(found) or "none"
        pytest.fail(
            f"unhandled errors on the event loop:\n{errors}\nexpected: {list(expected)}", pytrace=False
        )


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int | str:
    """The seed of the loop: a parameter called `seed`, else the option of the marker, else `SEED`."""
    found: int | str = marker_options(request.node, "virtual_time").get("seed", SEED)
    return found


@pytest.fixture
def loop(request: pytest.FixtureRequest, seed: int | str) -> Iterator[asyncio.AbstractEventLoop]:
    """The loop on which the test and its asynchronous fixtures run; a `SimLoop` unless marked `real_time`."""
    runtime = make_runtime(request.node, seed)
    request.node.stash[RUNTIME] = runtime
    try:
        yield runtime.loop
        # The call of the test has reported its own errors; only set-up and tear-down can have added more.
        if runtime.errors != request.node.stash.get(REPORTED, []):
            check_errors(runtime, expected_errors(request.node))
    finally:
        # Closing a loop abandons tasks, and their complaints say nothing about the test.
        runtime.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "virtual_time(seed, limit_s, errors): seed and limit of the test's SimLoop, errors it must report",
    )
    config.addinivalue_line("markers", "real_time: run the test on an ordinary event loop")


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Give each asynchronous test the fixture `loop`, so that the loop exists before other fixtures do."""
    collects = isinstance(collector, pytest.Module | pytest.Class) and collector.funcnamefilter(name)
    if collects and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("loop")(obj)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let pytest call a synchronous function that runs the asynchronous test on its loop."""
    test = pyfuncitem.obj
    of_hypothesis = getattr(test, "hypothesis", None)
    inner = getattr(of_hypothesis, "inner_test", None)
    if of_hypothesis is not None and inspect.iscoroutinefunction(inner):
        of_hypothesis.inner_test = _each_on_a_fresh_loop(inner, pyfuncitem)
    elif inspect.iscoroutinefunction(test):
        pyfuncitem.obj = _on_the_loop_of_the_item(test, pyfuncitem)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test
        if of_hypothesis is not None:
            of_hypothesis.inner_test = inner


def _on_the_loop_of_the_item(
    test: Callable[..., Coroutine[Any, Any, None]], item: pytest.Item
) -> Callable[..., None]:
    def run_test(**arguments: Any) -> None:
        runtime = item.stash[RUNTIME]
        try:
            runtime.run(test(**arguments))
        finally:
            item.stash[REPORTED] = list(runtime.errors)
        check_errors(runtime, expected_errors(item))

    return run_test


def _each_on_a_fresh_loop(
    test: Callable[..., Coroutine[Any, Any, None]], item: pytest.Item
) -> Callable[..., None]:
    @functools.wraps(test)
    def run_example(*args: Any, **arguments: Any) -> None:
        runtime = make_runtime(item, marker_options(item, "virtual_time").get("seed", SEED))
        try:
            runtime.run(test(*args, **arguments))
            check_errors(runtime, expected_errors(item))
        finally:
            runtime.close()

    # Hypothesis would see through this attribute that the wrapped test is asynchronous.
    del run_example.__wrapped__
    return run_example


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Drive an asynchronous fixture on the loop of the test that asks for it."""
    function = fixturedef.func
    if not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function):
        return (yield)
    if request.scope != "function":
        raise pytest.UsageError(f"asynchronous fixture {fixturedef.argname} must have function scope")
    request.getfixturevalue("loop")
    bound: Callable[..., Any] = function
    if inspect.ismethod(function) and request.instance is not None:
        bound = function.__func__.__get__(request.instance)
    driven = _driven_generator if inspect.isasyncgenfunction(function) else _driven_function
    # pytest calls `fixturedef.func` below this hook; the attribute is read-only for annotations alone.
    fixturedef.func = driven(bound, request.node.stash[RUNTIME])  # type: ignore[misc]
    try:
        return (yield)
    finally:
        fixturedef.func = function  # type: ignore[misc]


def _driven_function(function: Callable[..., Any], runtime: Runtime) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        return runtime.run(function(**arguments))

    return call


def _driven_generator(function: Callable[..., Any], runtime: Runtime) -> Callable[..., Any]:
    def call(**arguments: Any) -> Iterator[Any]:
        generator = function(**arguments)

        async def advance() -> Any:
            return await anext(generator)

        yield runtime.run(advance())
        try:
            runtime.run(advance())
        except StopAsyncIteration:
            return
        runtime.run(generator.aclose())
        raise RuntimeError("an asynchronous fixture must yield once")

    return call
