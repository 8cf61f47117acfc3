"""Refuse module and class names that use a word of the glossary in another sense.

The second table of the glossary in ARCHITECTURE.md lists words that used to have several meanings: the one
meaning that each has now, and the folders below src/anabranch whose modules and classes may be named with it.
A name with such a word anywhere else would bring a second meaning back.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DOCUMENT = Path("ARCHITECTURE.md")
PACKAGE = Path("src/anabranch")
HEADING = "| word | its one meaning | used in |"
ROW = re.compile(r"\| (\w+) \| .* \| (.*) \|")
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def load(document: str) -> dict[str, tuple[str, ...]]:
    """Return the folders and modules in which each word may be used."""
    _, found, table = document.partition(HEADING)
    assert found, f"{DOCUMENT} has no table {HEADING}"
    words = {}
    for line in table.splitlines()[2:]:
        row = ROW.fullmatch(line)
        if row is None:
            break
        words[row[1]] = tuple(re.findall(r"`([^`]+)`", row[2]))
    return words


def names(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the name of a module, and of each class in it, with its line."""
    yield 1, path.rpartition("/")[2].removesuffix(".py")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name


def words_of(name: str) -> set[str]:
    """Return the words of a name in lower case, without the plural's s as well as with it."""
    parts = {part.lower() for part in PARTS.findall(name)}
    return parts | {part.removesuffix("s") for part in parts}


def misuses(
    path: str, found: Iterable[tuple[int, str]], words: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """Return a line for each name of a module at `path`, below the package, that uses a word elsewhere."""
    for line, name in found:
        for word in sorted(words_of(name) & words.keys()):
            if not path.startswith(words[word]):
                where = ", ".join(words[word])
                yield f"{path}:{line}: {name} uses {word!r}, which names something else, in {where}"


def main() -> int:
    words = load(DOCUMENT.read_text())
    lines: list[str] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        lines += misuses(path, names(path, ast.parse(file.read_text())), words)
    print("\n".join(lines) or f"Each of {len(words)} words has one meaning.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
