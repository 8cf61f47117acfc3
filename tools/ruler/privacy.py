"""Count the places where code reaches into another object's private names.

A name is private if it begins with one underscore. An object may use its own, as `self._x` or `cls._x`, and
those of other objects of its class: `other._x` where `other` is annotated or made as one of them,
or is checked to be one with `isinstance`, as in an alternative constructor or in `__eq__`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.ruler.source import Function, Module, Place

OWN = frozenset(("self", "cls"))
PUBLIC = frozenset(("_replace", "_asdict", "_fields", "_make", "_exit", "_getframe"))
"""Names that begin with an underscore, and that are nevertheless documented as public."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in PUBLIC


def accesses(module: Module) -> Iterator[ast.Attribute]:
    """Return each access to a private name of another object."""
    foreign = {name for name, target in module.imported_names.items() if not target.startswith("anabranch")}
    yield from _accesses(module.tree, None, OWN | foreign)


def _accesses(node: ast.AST, owner: str | None, own: frozenset[str] | set[str]) -> Iterator[ast.Attribute]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _accesses(child, child.name, own | {child.name})
        elif isinstance(child, Function):
            yield from _accesses(child, owner, own | _same_class(child, owner))
        else:
            if isinstance(child, ast.Attribute) and is_private(child.attr) and not _is_own(child.value, own):
                yield child
            yield from _accesses(child, owner, own)


def _is_own(value: ast.expr, own: frozenset[str] | set[str]) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in own


def _same_class(function: Function, owner: str | None) -> set[str]:
    """Return the variables of a method that hold another instance of its class."""
    kinds = {owner, "Self", "cls"} - {None}
    given = function.args
    arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    found = {one.arg for one in arguments if _first_name(one.annotation) in kinds}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _maker(node.value) in kinds:
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif (
            isinstance(node, ast.Call) and _maker(node) == "isinstance" and _first_name(node.args[1]) in kinds
        ):
            found |= {node.args[0].id} if isinstance(node.args[0], ast.Name) else set()
    return found


def _maker(call: ast.Call) -> str | None:
    """Return the class that a call makes an instance of: `Name(...)`, `cls(...)` or `Name.__new__(Name)`."""
    made = call.func
    if isinstance(made, ast.Attribute) and made.attr == "__new__":
        made = made.value
    return _first_name(made)


def _first_name(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.partition("[")[0]
    return node.id if isinstance(node, ast.Name) else None


def measure(module: Module) -> Iterator[tuple[Place, int]]:
    yield Place(module.path, "", "private"), sum(1 for _ in accesses(module))
