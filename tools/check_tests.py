"""Refuse tests that depend on more than the public behaviour of the code.

The check refuses, under `tests/`: private attributes of other objects, read or patched; private names that
are imported; imports of test modules; a coroutine `main` inside a test; and `time.sleep` in unit tests. Class
names that two files define are refused too. Run it from the root of the repository; it names each place and
exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PUBLIC_DESPITE_UNDERSCORE = {"_replace", "_asdict", "_fields", "_make", "_exit"}
"""Names that the standard library documents: of named tuples, and `os._exit`."""

SKIPPED_CLASSES = "protocol/pb/"
"""Generated classes carry the names of the protocol."""


def is_private(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and name != "_" and not dunder and name not in PUBLIC_DESPITE_UNDERSCORE


def is_own(value: ast.expr) -> bool:
    """Whether an attribute belongs to the object whose method reads it: `self`, `cls` or `super()`."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def problem_in(node: ast.AST, path: str) -> str | None:
    """Return the reason to refuse one node of a file, if there is one."""
    match node:
        case ast.Attribute(value=ast.Name("time"), attr="sleep") if "/unit/" in path:
            return "time.sleep in a unit test; use virtual time"
        case ast.Attribute(value=value, attr=name) if is_private(name) and not is_own(value):
            return f"private attribute {name}"
        case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[_, ast.Constant(str(name)), *_]):
            return f"patched private attribute {name}" if is_private(name) else None
        case ast.ImportFrom(module=str(module), names=names):
            if ".test_" in f".{module}" or (
                module.startswith("tests") and any(alias.name.startswith("test_") for alias in names)
            ):
                return f"import of the test module {module}; move shared code to tests/harness"
            private = [alias.name for alias in names if is_private(alias.name)]
            return f"import of the private name {private[0]}" if private else None
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            if any(isinstance(inner, ast.AsyncFunctionDef) and inner.name == "main" for inner in body):
                return "coroutine `main` inside a test; make the test itself `async def`"
    return None


def findings(path: str, source: str) -> Iterator[str]:
    """Return the problems of one test file, in the order of its lines."""
    nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    for node in sorted(nodes, key=lambda node: node.lineno):
        problem = problem_in(node, path)
        if problem is not None:
            yield f"{path}:{node.lineno}: {problem}"


def repeated_classes(sources: dict[str, str]) -> Iterator[str]:
    """Return a line for each class name that more than one class has."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"class {name} is defined at {', '.join(found)}; give each class its own name"


def main() -> int:
    sources = {
        str(path): path.read_text()
        for top in ("src", "simulation", "benchmarks", "tests")
        for path in sorted(Path(top).rglob("*.py"))
    }
    found = [
        line
        for path, source in sources.items()
        if path.startswith("tests")
        for line in findings(path, source)
    ]
    found += repeated_classes(
        {path: source for path, source in sources.items() if SKIPPED_CLASSES not in path}
    )
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
