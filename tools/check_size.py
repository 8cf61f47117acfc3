"""Refuse places that are larger than a reader should have to meet, unless the list of exceptions allows them.

What is measured, and the limit in the package and in tests:

    code            lines of code of a module: no blank lines, comments, docstrings or imports
    lines           lines of a function
    complexity      independent paths through a function (McCabe)
    parameters      parameters of a function, besides `self` and `cls`
    object-lines    lines of code of a class with everything it inherits
    object-methods  methods of a class with everything it inherits, overridden ones included
    object-depth    classes on the longest way from a class to a base class, itself included
    modules         modules in a folder, besides `__init__` and `__main__`
    private         accesses to another object's private names in a module
    cycle           modules that import each other, type-only and late imports included

`tools/size_exceptions.txt` lists every place that exceeds a limit today. The list may only shrink: the check
fails when a new place exceeds a limit, when a listed place grew, and when an entry can be lowered or removed.

`--renew` lowers and removes entries. `--start` writes the whole list again; a reviewer must agree to that.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.ruler import imports, objects, privacy, source
from tools.ruler.source import Module, Place

ROOT = Path(__file__).parent.parent
EXCEPTIONS = Path("tools/size_exceptions.txt")
FOLDERS = ("src", "simulation", "benchmarks", "tests", "examples", "tools")
SKIPPED = ("protocol/pb/",)

Sizes = dict[Place, int]

LIMITS = {
    "code": 450,
    "lines": 40,
    "complexity": 10,
    "parameters": 5,
    "object-lines": 500,
    "object-methods": 50,
    "object-depth": 2,
    "modules": 15,
    "private": 0,
    "cycle": 1,
}
TEST_LIMITS = LIMITS | {"lines": 50}


def limit_of(place: Place) -> int:
    return (TEST_LIMITS if place.path.startswith("tests/") else LIMITS)[place.measure]


def read_modules(root: Path) -> list[Module]:
    """Read every module of the repository that people wrote."""
    files = (file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py")))
    paths = ((file, file.relative_to(root).as_posix()) for file in files)
    return [
        Module(path, file.read_text()) for file, path in paths if not any(part in path for part in SKIPPED)
    ]


def measure(modules: Sequence[Module]) -> Iterator[tuple[Place, int]]:
    """Return every measure of the repository."""
    package = [module for module in modules if module.path.startswith("src/")]
    for module in modules:
        yield from source.measure(module)
    for module in package:
        yield from privacy.measure(module)
    yield from objects.measure(objects.classes(modules))
    yield from imports.measure(package)
    yield from _folders(module.path for module in modules)


def _folders(paths: Iterable[str]) -> Iterator[tuple[Place, int]]:
    named = (Path(path) for path in paths)
    counts = Counter(path.parent.as_posix() for path in named if not path.stem.startswith("__"))
    for folder, count in counts.items():
        yield Place(f"{folder}/", "", "modules"), count


def exceeding(measured: Iterable[tuple[Place, int]]) -> Sizes:
    """Return every place that exceeds its limit, with its largest size."""
    found: Sizes = {}
    for place, size in measured:
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
    found = exceeding(measure(read_modules(ROOT)))
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
