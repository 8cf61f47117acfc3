"""Find import cycles: modules that need each other, whether at run time, for types only or inside a function.

A late import hides a cycle from the interpreter only: a reader still has to know both modules at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tools.ruler.source import Module, Place


def graph(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports by name; packages above them are not counted."""
    known = {module.dotted: module for module in modules}
    needs: dict[str, set[str]] = {}
    for name, module in known.items():
        found = set()
        for target in module.imported_names.values():
            package = target.rpartition(".")[0]
            found.add(target if target in known else package)
        needs[name] = (found & known.keys()) - {name}
    return needs


def cycles(needs: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Return every group of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = low[name] = len(index)
        path.append(name)
        for target in sorted(needs[name]):
            if target not in index:
                yield from visit(target)
                low[name] = min(low[name], low[target])
            elif target in path:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            start = path.index(name)
            group = path[start:]
            del path[start:]
            if len(group) > 1:
                yield sorted(group)

    for name in sorted(needs):
        if name not in index:
            yield from visit(name)


def measure(modules: Iterable[Module]) -> Iterator[tuple[Place, int]]:
    """Return the size of each cycle, at its first module by name."""
    paths = {module.dotted: module.path for module in modules}
    for group in cycles(graph(modules)):
        yield Place(paths[group[0]], "", "cycle"), len(group)
