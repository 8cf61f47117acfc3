"""The check of tests: refused and accepted code."""

from __future__ import annotations

import pytest

from tools.check_tests import findings, repeated_classes


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("assert store._thread is None", "private attribute _thread"),
        ("stores[0]._thread = None", "private attribute _thread"),
        ("patch.setattr(Layout, '_succeed', succeed)", "patched private attribute _succeed"),
        ("from anabranch.server.supervisor import _Worker", "private name _Worker"),
        ("from tests.unit.admin.test_admin import Admin", "import of the test module"),
        ("def test_it():\n    async def main(): ...", "coroutine `main`"),
        ("import time\ntime.sleep(1)", "time.sleep in a unit test"),
    ],
)
def test_dependence_on_more_than_public_behaviour_is_refused(source: str, problem: str) -> None:
    (found,) = findings("tests/unit/test_a.py", source)
    assert problem in found


@pytest.mark.parametrize(
    "source",
    [
        "class Fake:\n    def f(self): return self._x",
        "class Fake(Real):\n    def f(self): return super()._f()",
        "place._replace(term=2)",
        "patch.setattr(Layout, 'merge', merge)",
        "from tests.harness.cluster import Brokers",
        "os._exit(0)",
        "module.__file__",
    ],
)
def test_own_attributes_and_documented_names_pass(source: str) -> None:
    assert list(findings("tests/unit/test_a.py", source)) == []


def test_a_process_test_may_sleep() -> None:
    assert list(findings("tests/process/test_a.py", "import time\ntime.sleep(1)")) == []


def test_a_class_name_that_occurs_twice_is_refused() -> None:
    sources = {"src/a.py": "class Inbox: ...", "tests/b.py": "class Inbox: ...\nclass Other: ..."}
    (found,) = repeated_classes(sources)
    assert found.startswith("class Inbox is defined at src/a.py:1, tests/b.py:1")
