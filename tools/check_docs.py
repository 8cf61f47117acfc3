"""Check the documents: files they name exist, and ARCHITECTURE.md keeps its size.

A name such as `serving/producer.py` or `dispatch/` must be the end of the path of a file or folder. Run it
from the root of the repository; it names each place and exits with 1 if it finds one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "changes/README.md"),
    *sorted(map(str, Path("docs").glob("*.md"))),
)
LINES_MAX = 400
WIDTH_MAX = 120

NAMES = re.compile(r"`([a-z_./]+(?:\.(?:py|toml|txt|proto|md)|/))`")
ROOTS = ("benchmarks", "changes", "csrc", "docs", "examples", "simulation", "src", "tests", "tools")


def known_paths() -> set[str]:
    """Every file and folder of the repository, folders with a slash at the end."""
    found = {path.as_posix() for path in Path().iterdir() if path.is_file()} | {f"{root}/" for root in ROOTS}
    for path in (path for root in ROOTS for path in Path(root).rglob("*")):
        found.add(f"{path.as_posix()}/" if path.is_dir() else path.as_posix())
    return found


def missing_names(text: str, known: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The line and the name of each file or folder that `text` names and the repository lacks."""
    paths = [f"/{path}" for path in known]
    for number, line in enumerate(text.splitlines(), 1):
        for name in NAMES.findall(line):
            if not any(path.endswith(f"/{name}") for path in paths):
                yield number, name


def oversize(text: str) -> Iterator[tuple[int, str]]:
    """The lines beyond the limits of ARCHITECTURE.md."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH_MAX:
            yield number, f"{len(line)} characters, at most {WIDTH_MAX} fit"
        if number > LINES_MAX:
            yield number, f"the document has at most {LINES_MAX} lines"
            return


def main() -> int:
    known = known_paths()
    problems = []
    for name in DOCUMENTS:
        text = Path(name).read_text()
        problems += [f"{name}:{line}: no such file: {what}" for line, what in missing_names(text, known)]
        if name == "ARCHITECTURE.md":
            problems += [f"{name}:{line}: {what}" for line, what in oversize(text)]
    print("\n".join(problems) or "documents name existing files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
