from __future__ import annotations

from textwrap import dedent

from tools.check_size import Place, complaints, dump, limit_of, load, measure, renewed

LONG = Place("src/a.py", "Shop.sell", "lines")
WIDE = Place("src/a.py", "Shop.sell", "parameters")
MODULE = Place("src/a.py", "", "lines")


def sizes(source: str) -> dict[tuple[str, str], int]:
    return {(place.name, place.measure): size for place, size in measure("src/a.py", dedent(source))}


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
    assert found["", "lines"] == 5
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
    assert limit_of(Place("tests/a.py", "", "lines")) > limit_of(MODULE)


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
