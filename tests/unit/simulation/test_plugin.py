"""The pytest plugin: on which loop a test runs, and which errors fail it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from simulation.plugin import RealRuntime, VirtualRuntime, check_errors, marker_options
from simulation.world.loop import SimLoop

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return Runs(pytester)


class Runs:
    """Runs the text of a test module in a pytest of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    def __call__(self, text: str) -> pytest.RunResult:
        self._pytester.makepyfile("import asyncio\nimport pytest\n" + text)
        return self._pytester.runpytest_subprocess(
            "-p", "simulation.plugin", "-p", "no:cacheprovider", "--strict-markers", "-W", "error"
        )


async def test_a_test_runs_on_the_loop_of_the_fixture(loop: SimLoop) -> None:
    assert asyncio.get_running_loop() is loop
    assert isinstance(loop, SimLoop)


@pytest.mark.real_time
async def test_a_test_in_real_time_runs_on_an_ordinary_loop(loop: asyncio.AbstractEventLoop) -> None:
    assert asyncio.get_running_loop() is loop
    assert not isinstance(loop, SimLoop)
    assert await asyncio.to_thread(int, "7") == 7


@pytest.mark.virtual_time(seed="mine", limit_s=50_000)
async def test_the_marker_sets_seed_and_limit(loop: SimLoop) -> None:
    assert loop.seed == "mine"
    await asyncio.sleep(40_000)


@pytest.mark.parametrize("seed", [3, 4])
async def test_a_parameter_called_seed_is_the_seed_of_the_loop(loop: SimLoop, seed: int) -> None:
    assert loop.seed == seed


@pytest.mark.virtual_time(limit_s=1)
@pytest.mark.virtual_time(seed=9)
async def test_the_options_of_all_markers_count(request: pytest.FixtureRequest) -> None:
    assert marker_options(request.node, "virtual_time") == {"seed": 9, "limit_s": 1}


def test_expected_errors_are_compared_one_by_one() -> None:
    runtime = VirtualRuntime(1)
    check_errors(runtime, [])
    runtime.errors += ["first: broken", "second: lost"]
    check_errors(runtime, ["broken", "lost$"])
    for expected in ([], ["broken"], ["lost", "broken"], ["broken", "lost", "more"]):
        with pytest.raises(pytest.fail.Exception, match="first: broken"):
            check_errors(runtime, expected)
    runtime.close()


def test_an_ordinary_loop_keeps_its_unhandled_errors() -> None:
    runtime = RealRuntime()
    runtime.loop.call_exception_handler({"message": "oops", "exception": ValueError("broken")})
    assert runtime.errors == ["oops: ValueError('broken')"]
    runtime.close()


def test_a_false_assertion_fails_the_test(run_tests: Runs) -> None:
    run_tests("""
async def test_virtual():
    await asyncio.sleep(1000)
    assert False

@pytest.mark.real_time
async def test_real():
    await asyncio.sleep(0)
    assert False
""").assert_outcomes(failed=2)


@pytest.mark.parametrize("mark", ["", "@pytest.mark.real_time"])
def test_a_background_task_that_fails_fails_the_test(run_tests: Runs, mark: str) -> None:
    result = run_tests(f"""
async def fail():
    raise ValueError("broken")

{mark}
async def test_it():
    asyncio.get_running_loop().create_task(fail())
    await asyncio.sleep(0.01)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unhandled errors on the event loop*", "*broken*"])


def test_an_unfinished_task_that_is_collected_fails_the_test(run_tests: Runs) -> None:
    result = run_tests("""
import gc

async def wait():
    await asyncio.get_running_loop().create_future()

@pytest.mark.real_time
async def test_it():
    asyncio.get_running_loop().create_task(wait())
    await asyncio.sleep(0)
    gc.collect()
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Task was destroyed but it is pending*"])


def test_an_error_in_a_tear_down_is_an_error_of_the_test(run_tests: Runs) -> None:
    run_tests("""
@pytest.fixture
async def late():
    yield
    asyncio.get_running_loop().call_soon(int, "x")
    await asyncio.sleep(0)

async def test_it(late):
    pass
""").assert_outcomes(passed=1, errors=1)


def test_errors_that_the_marker_announces_must_come(run_tests: Runs) -> None:
    run_tests("""
@pytest.mark.virtual_time(errors=["broken"])
async def test_announced():
    asyncio.get_running_loop().call_soon(lambda: int("broken"))
    await asyncio.sleep(0)

@pytest.mark.virtual_time(errors=["broken"])
async def test_silent():
    pass
""").assert_outcomes(passed=1, failed=1)


def test_asynchronous_fixtures_share_the_loop_of_the_test(run_tests: Runs) -> None:
    run_tests("""
ended = []

@pytest.fixture
async def value():
    await asyncio.sleep(5)
    return asyncio.get_running_loop()

@pytest.fixture
async def resource(value):
    yield value
    await asyncio.sleep(5)
    ended.append(asyncio.get_running_loop() is value)

async def test_it(value, resource, loop):
    assert value is resource is loop is asyncio.get_running_loop()
    assert loop.time() == 5

def test_the_tear_down_ran():
    assert ended == [True]

def test_without_await(resource, loop):
    assert resource is loop
""").assert_outcomes(passed=3)


def test_an_asynchronous_fixture_of_wider_scope_is_refused(run_tests: Runs) -> None:
    result = run_tests("""
@pytest.fixture(scope="module")
async def wide():
    return 1

async def test_it(wide):
    pass
""")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*wide must have function scope*"])


def test_each_example_of_hypothesis_has_a_fresh_loop(run_tests: Runs) -> None:
    result = run_tests("""
from hypothesis import given, settings, strategies as st

seen = set()

@settings(max_examples=20, database=None)
@given(st.integers())
async def test_fresh(number):
    loop = asyncio.get_running_loop()
    assert loop.time() == 0
    await asyncio.sleep(1)
    seen.add(number)

def test_examples_were_run():
    assert len(seen) > 5

@settings(max_examples=20, database=None)
@given(st.integers())
async def test_false(number):
    await asyncio.sleep(1)
    assert number < 3

@settings(max_examples=20, database=None)
@given(st.integers())
async def test_error(number):
    asyncio.get_running_loop().call_soon(int, "broken")
    await asyncio.sleep(0)
""")
    result.assert_outcomes(passed=2, failed=2)


def test_a_test_that_can_never_end_fails(run_tests: Runs) -> None:
    result = run_tests("""
async def test_it(loop):
    await loop.create_future()

@pytest.mark.virtual_time(limit_s=10)
async def test_limit():
    await asyncio.sleep(11)
""")
    result.assert_outcomes(failed=2)


def test_a_hypothesis_test_with_parameters_takes_the_markers_of_each(run_tests: Runs) -> None:
    run_tests("""
from hypothesis import given, settings, strategies as st

@pytest.mark.parametrize(
    "named", [pytest.param(name, marks=pytest.mark.virtual_time(seed=name)) for name in ("a", "b")]
)
@settings(max_examples=5, database=None)
@given(number=st.integers())
async def test_it(named, number):
    assert asyncio.get_running_loop().seed == named
""").assert_outcomes(passed=2)


def test_fixtures_of_a_class_see_the_instance_of_the_test(run_tests: Runs) -> None:
    run_tests("""
class TestIt:
    @pytest.fixture
    async def kept(self):
        self.kept = 7
        yield
        assert self.kept == 8

    async def test_it(self, kept):
        assert self.kept == 7
        self.kept = 8
""").assert_outcomes(passed=1)


def test_a_fixture_that_yields_twice_is_refused(run_tests: Runs) -> None:
    result = run_tests("""
@pytest.fixture
async def twice():
    yield 1
    yield 2

async def test_it(twice):
    pass
""")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*must yield once*"])
