from __future__ import annotations

from textwrap import dedent

from tools.check_size import complaints, dump, exceeding, limit_of, load, measure, renewed
from tools.ruler.source import Module, Place

LONG = Place("src/a.py", "Shop.sell", "lines")
WIDE = Place("src/a.py", "Shop.sell", "parameters")
MODULE = Place("src/a.py", "", "code")


def sizes(source: str) -> dict[tuple[str, str], int]:
    return {
        (place.name, place.measure): size for place, size in measure([Module("src/a.py", dedent(source))])
    }


def places(**sources: str) -> dict[str, int]:
    """Every place above its limit in a package of several modules."""
    modules = [Module(f"src/anabranch/{name}.py", dedent(source)) for name, source in sources.items()]
    return {str(place): size for place, size in exceeding(measure(modules)).items()}


def test_functions_are_measured_by_their_qualified_name() -> None:
    found = sizes(
        """\
        class Shop:
            def sell(self, what, *, price):
                def bill(total):
                    return total
                return bill(price)
        """
    )
    assert found["", "code"] == 5
    assert found["Shop.sell", "lines"] == 4
    assert found["Shop.sell", "parameters"] == 2
    assert found["Shop.sell.bill", "parameters"] == 1


def test_star_arguments_are_parameters() -> None:
    assert sizes("def f(a, /, b, *c, d, **e): ...")["f", "parameters"] == 5


def test_each_branch_adds_one_to_the_complexity() -> None:
    found = sizes(
        """\
        def f(x):
            if x: pass
            elif not x: pass
            for _ in x: pass
            while x: pass
            try: pass
            except ValueError: pass
            match x:
                case 1: pass
                case _: pass
            return [y for y in x]
        """
    )
    assert found["f", "complexity"] == 9


def test_branches_of_an_inner_function_count_there() -> None:
    found = sizes("def f():\n    def g(x):\n        if x: pass\n    return g\n")
    assert (found["f", "complexity"], found["f.g", "complexity"]) == (1, 2)


def test_tests_have_limits_of_their_own() -> None:
    assert limit_of(Place("tests/a.py", "f", "lines")) > limit_of(LONG)


def test_only_lines_of_code_count_in_a_module() -> None:
    found = sizes(
        '''\
        """What the module does."""

        import os

        # Why it is done so.
        LIMIT = (
            1
        )
        """What the limit means."""


        def f():
            """What it returns."""
            return LIMIT
        '''
    )
    assert found["", "code"] == 5


TOWER = """\
    from typing import Protocol
    class Port(Protocol):
        def call(self): ...
    class Ground(Port, dict):
        def one(self): pass
        def two(self): pass
    class Middle(Ground):
        def two(self): pass
"""


def test_an_object_counts_with_everything_it_inherits() -> None:
    found = sizes(TOWER)
    assert (found["Ground", "object-methods"], found["Ground", "object-depth"]) == (2, 1)
    assert (found["Middle", "object-methods"], found["Middle", "object-depth"]) == (3, 2)
    assert found["Middle", "object-lines"] == 5
    assert ("Port", "object-methods") not in found


def test_bases_are_found_in_other_modules() -> None:
    top = """\
        from anabranch.tower import Middle as Base
        class Top(Base[int]):
            pass
    """
    assert places(tower=TOWER, top=top) == {"src/anabranch/top.py Top object-depth": 3}


def test_exceptions_may_inherit_as_deep_as_they_like() -> None:
    errors = """\
        class Root(Exception): ...
        class Family(Root): ...
        class Kind(Family): ...
    """
    assert places(errors=errors) == {}


def test_an_access_to_a_private_name_of_another_object_is_counted() -> None:
    assert places(a="def f(x):\n    return x._line, x.y._run\n") == {"src/anabranch/a.py private": 2}


def test_an_object_may_use_private_names_of_its_own_class() -> None:
    source = """\
        import os, queue
        class Bag:
            def __eq__(self, other: object) -> bool:
                return isinstance(other, Bag) and self._items == other._items
            def plus(self, other: Bag) -> Bag:
                made = Bag()
                made._items = self._items + other._items
                super()._note()
                os._exit(1)
                return made
            @classmethod
            def make(cls) -> Bag:
                return cls._known
        def f(row):
            return row._replace(a=1).__dict__
    """
    assert places(a=source) == {}


def test_modules_that_import_each_other_are_a_cycle_however_late_they_do() -> None:
    found = places(
        a="from anabranch import b",
        b="def f():\n    from anabranch.c import x\n",
        c="if TYPE_CHECKING:\n    import anabranch.a\n",
        d="import anabranch.a",
    )
    assert found == {"src/anabranch/a.py cycle": 3}


def test_a_folder_counts_its_modules_but_not_its_init() -> None:
    names = ["__init__", "__main__", *(f"m{number}" for number in range(16))]
    assert places(**dict.fromkeys(names, "")) == {"src/anabranch/ modules": 16}


def test_a_place_as_large_as_its_exception_is_accepted() -> None:
    assert complaints({LONG: 50}, {LONG: 50}) == []


def test_a_new_place_above_the_limit_is_refused() -> None:
    assert complaints({LONG: 50}, {}) == ["src/a.py Shop.sell lines is 50; the limit is 40"]


def test_an_exception_that_grew_is_refused() -> None:
    assert complaints({LONG: 51}, {LONG: 50}) == [
        "src/a.py Shop.sell lines grew from 50 to 51; the limit is 40"
    ]


def test_an_exception_that_shrank_has_to_be_lowered() -> None:
    (line,) = complaints({LONG: 45}, {LONG: 50})
    assert "lower its exception to 45" in line


def test_an_exception_that_is_not_needed_has_to_go() -> None:
    (line,) = complaints({}, {MODULE: 350})
    assert "remove its exception" in line


def test_renewing_lowers_and_removes_but_never_adds() -> None:
    assert renewed({LONG: 45, WIDE: 9, MODULE: 400}, {LONG: 50, MODULE: 350}) == {LONG: 45, MODULE: 350}
    assert renewed({}, {LONG: 50}) == {}


def test_the_list_can_be_read_back() -> None:
    entries = {LONG: 50, WIDE: 9, MODULE: 350}
    assert load(dump(entries)) == entries
