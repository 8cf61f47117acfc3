"""Refuse prose whose subject is no noun of the domain: "whoever", "nobody", sentences that begin with "What".

The check reads docstrings, comments and all string literals of several words. Run it from the root of the
repository, with folders as arguments if not all are meant; it names each place and exits with 1 if there is
one. `--count` prints a number per folder instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "simulation", "benchmarks", "tests", "examples", "tools")
SKIPPED = ("protocol/pb/", "check_prose.py")

PRONOUNS = re.compile(
    r"\b(who|whom|whoever|whomever|whatever|nobody|somebody|anybody|everybody|everyone|anyone|someone)\b",
    re.I,
)
OPENINGS = re.compile(r"(?:^|[.:;!?] )(What|Who|Whose|Where|That)\b(?! (is|are) )")


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Every comment, docstring and message of a file, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            yield node.lineno, re.sub(r"\s+", " ", node.value)


def riddle_in(text: str) -> str | None:
    """Return the first word of a text that stands in for a noun of the domain."""
    found = PRONOUNS.search(text) or OPENINGS.search(text)
    return None if found is None else found.group(0).strip(".:;!? ")


def findings(path: Path) -> Iterator[str]:
    for line, text in sentences(path.read_text()):
        word = riddle_in(text)
        if word is not None:
            yield f"{path}:{line}: {word!r} in: {text[:100]}"


def files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def main(arguments: list[str]) -> int:
    counting = "--count" in arguments
    folders = [argument for argument in arguments if not argument.startswith("--")] or list(FOLDERS)
    counts: Counter[str] = Counter()
    for folder in folders:
        for path in files(Path(folder)):
            if any(skipped in path.as_posix() for skipped in SKIPPED):
                continue
            for finding in findings(path):
                counts[path.parent.as_posix()] += 1
                if not counting:
                    print(finding)
    if counting:
        for name, count in sorted(counts.items()):
            print(f"{count:5} {name}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
