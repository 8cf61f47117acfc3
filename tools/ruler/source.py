"""Read the modules of the repository, and measure modules and functions one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)
IMPORTS = (ast.Import, ast.ImportFrom)


class Place(NamedTuple):
    """A module or folder (without a name), a class or a function, and one measure of it."""

    path: str
    name: str
    measure: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


@dataclass(frozen=True)
class Module:
    """One parsed module, by its path below the root of the repository."""

    path: str
    text: str

    @property
    def dotted(self) -> str:
        """The name under which other modules import this one."""
        parts = Path(self.path.removeprefix("src/")).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the module; walking over them is the slowest part of the check."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imported_names(self) -> dict[str, str]:
        """The full names of everything the module imports, late imports included."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    names[one.asname or one.name] = one.name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    names[one.asname or one.name] = f"{node.module}.{one.name}"
        return names

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """The numbers of the lines of code: no blank lines, comments, docstrings or imports.

        A string that stands alone is a docstring wherever it stands, also below an attribute.
        """
        stripped = ((number, line.strip()) for number, line in enumerate(self.text.splitlines(), 1))
        lines = {number for number, line in stripped if line and not line.startswith("#")}
        for node in self.nodes:
            if isinstance(node, IMPORTS) or is_docstring(node):
                lines.difference_update(lines_of(node))
        return frozenset(lines)


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def lines_of(node: ast.stmt | ast.AST) -> range:
    """The lines from the first line of a statement, decorators left out, to its last."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return range(first, last + 1)


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Return every function below a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, f"{name}.")
        elif not isinstance(child, ast.expr):
            yield from functions(child, prefix)


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


def measure(module: Module) -> Iterator[tuple[Place, int]]:
    """Return the measures of a module and its functions; functions of one name share a place."""
    yield Place(module.path, "", "code"), len(module.code_lines)
    for name, function in functions(module.tree):
        yield Place(module.path, name, "lines"), len(lines_of(function))
        yield Place(module.path, name, "complexity"), complexity(function)
        yield Place(module.path, name, "parameters"), parameters(function)
