"""Refuse modules and functions that exceed a size limit, unless the list of exceptions allows their size.

The measures are lines of a module, and lines, complexity (McCabe) and parameters of a function.
`tools/size_exceptions.txt` lists every place that exceeds a limit today. The list may only shrink: the check
fails when a new place exceeds a limit, when a listed place grew, and when an entry can be lowered or removed.

`--renew` lowers and removes entries. `--start` writes the whole list again; a reviewer must agree to that.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
EXCEPTIONS = Path("tools/size_exceptions.txt")
FOLDERS = ("src", "simulation", "benchmarks", "tests", "examples", "tools")
SKIPPED = ("protocol/pb/",)

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


class Place(NamedTuple):
    """A module (without a name) or a function, and one measure of it."""

    path: str
    name: str
    measure: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


Sizes = dict[Place, int]


class Limits(NamedTuple):
    """The largest allowed value of each measure."""

    module_lines: int
    function_lines: int
    complexity: int
    parameters: int

    def of(self, place: Place) -> int:
        if place.measure == "lines":
            return self.function_lines if place.name else self.module_lines
        return self.complexity if place.measure == "complexity" else self.parameters


CODE_LIMITS = Limits(module_lines=300, function_lines=40, complexity=10, parameters=5)
TEST_LIMITS = Limits(module_lines=400, function_lines=50, complexity=10, parameters=5)


def limit_of(place: Place) -> int:
    return (TEST_LIMITS if place.path.startswith("tests/") else CODE_LIMITS).of(place)


def measure(path: str, source: str) -> Iterator[tuple[Place, int]]:
    """Return every measure of one module; functions of one name share a place, which gets the largest."""
    yield Place(path, "", "lines"), len(source.splitlines())
    for name, function in _functions(ast.parse(source), ""):
        yield Place(path, name, "lines"), (function.end_lineno or function.lineno) - function.lineno + 1
        yield Place(path, name, "complexity"), complexity(function)
        yield Place(path, name, "parameters"), parameters(function)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def complexity(function: Function) -> int:
    """Return the number of independent paths; an inner function counts by itself."""
    count, waiting = 1, list(function.body)
    while waiting:
        node: ast.AST = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        count += isinstance(node, BRANCHES)
        waiting += ast.iter_child_nodes(node)  # type: ignore[arg-type]
    return count


def parameters(function: Function) -> int:
    """Return the number of parameters besides `self` and `cls`."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def exceeding(root: Path) -> Sizes:
    """Return every place of the tree that exceeds its limit, with its size."""
    found: Sizes = {}
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            if any(part in path for part in SKIPPED):
                continue
            for place, size in measure(path, file.read_text()):
                if size > limit_of(place):
                    found[place] = max(size, found.get(place, 0))
    return found


def complaints(found: Mapping[Place, int], allowed: Mapping[Place, int]) -> list[str]:
    """Compare the tree with the list of exceptions; return what has to change, one line each."""
    lines = []
    for place, size in found.items():
        known = allowed.get(place)
        if known is None:
            lines.append(f"{place} is {size}; the limit is {limit_of(place)}")
        elif size > known:
            lines.append(f"{place} grew from {known} to {size}; the limit is {limit_of(place)}")
        elif size < known:
            lines.append(f"{place} shrank from {known}: lower its exception to {size} (--renew does)")
    for place in allowed.keys() - found.keys():
        lines.append(f"{place} is within its limit: remove its exception (--renew does)")
    return sorted(lines)


def renewed(found: Mapping[Place, int], allowed: Mapping[Place, int]) -> Sizes:
    """Return the list of exceptions with entries lowered and removed, never raised or added."""
    return {place: min(size, found[place]) for place, size in allowed.items() if place in found}


def load(text: str) -> Sizes:
    """Read a list of exceptions."""
    entries: Sizes = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            path, *name, measured, size = line.split()
            entries[Place(path, name[0] if name else "", measured)] = int(size)
    return entries


def dump(entries: Mapping[Place, int]) -> str:
    """Write a list of exceptions."""
    lines = [f"{place} {size}" for place, size in sorted(entries.items())]
    return "\n".join(
        ["# Places that exceed a size limit; see check_size.py. This list may only shrink.", *lines, ""]
    )


def main(arguments: list[str]) -> int:
    file = ROOT / EXCEPTIONS
    found = exceeding(ROOT)
    if "--start" in arguments:
        file.write_text(dump(found))
        return 0
    allowed = load(file.read_text()) if file.exists() else {}
    if "--renew" in arguments:
        allowed = renewed(found, allowed)
        file.write_text(dump(allowed))
    lines = complaints(found, allowed)
    print("\n".join(lines) if lines else f"All sizes are within the limits, except {len(allowed)} places.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
