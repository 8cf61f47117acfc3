"""Measure objects: a class together with everything it inherits from classes of the repository.

A reader of an object reads its base classes too, although they may be in other files. Protocols, exceptions
and classes of other packages are left out: a protocol has no code, and the rest is documented elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tools.ruler.source import Function, Module, Place, lines_of


@dataclass(frozen=True)
class Class:
    """One class statement at the top of a module."""

    module: Module
    node: ast.ClassDef
    bases: tuple[str, ...]
    """Qualified names, for classes that are imported or defined in the same module."""

    @property
    def is_protocol(self) -> bool:
        return any(base.rpartition(".")[2] == "Protocol" for base in self.bases)

    @property
    def methods(self) -> frozenset[str]:
        return frozenset(one.name for one in self.node.body if isinstance(one, Function))

    @property
    def code_lines(self) -> int:
        return len(self.module.code_lines.intersection(lines_of(self.node)))


def classes(modules: Iterable[Module]) -> dict[str, Class]:
    """Return the classes of the repository by qualified name."""
    found: dict[str, Class] = {}
    for module in modules:
        names = module.imported_names
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                local = f"{module.dotted}."
                bases = tuple(names.get(name, local + name) for name in map(_base_name, node.bases) if name)
                found[local + node.name] = Class(module, node, bases)
    return found


def _base_name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        base = base.value
    return ast.unparse(base)


def chain(name: str, known: Mapping[str, Class]) -> Iterator[str]:
    """Return a class and everything it inherits, without protocols and without classes of other packages."""
    one = known.get(name)
    if one is not None and not one.is_protocol:
        yield name
        for base in one.bases:
            yield from chain(base, known)


def depth(name: str, known: Mapping[str, Class]) -> int:
    """Return how many classes lie on the longest way up, the class itself included."""
    one = known.get(name)
    if one is None or one.is_protocol:
        return 0
    return 1 + max((depth(base, known) for base in one.bases), default=0)


def is_exception(name: str, known: Mapping[str, Class]) -> bool:
    one = known.get(name)
    if one is None:
        last = name.rpartition(".")[2]
        return last.endswith(("Error", "Exception", "Warning"))
    return any(is_exception(base, known) for base in one.bases)


def measure(known: Mapping[str, Class]) -> Iterator[tuple[Place, int]]:
    """Return the lines of code, the methods and the depth of every object."""
    for name, one in known.items():
        if one.is_protocol or is_exception(name, known):
            continue
        parts = [known[part] for part in dict.fromkeys(chain(name, known))]
        path, short = one.module.path, one.node.name
        yield Place(path, short, "object-lines"), sum(part.code_lines for part in parts)
        yield Place(path, short, "object-methods"), sum(len(part.methods) for part in parts)
        yield Place(path, short, "object-depth"), depth(name, known)
