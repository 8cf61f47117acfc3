"""The code blocks of README.md and docs, and the examples of docstrings, as tests and mypy need them.

A block of Python may use the names of `NAMES` beside those it makes. `python tools/snippets.py FOLDER` writes
each one into a module there, as a function with these arguments, so that mypy checks it; so with each example
of a public name, and with the cells of each notebook together.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import anabranch
from anabranch import spark
from anabranch.spark import pipelines

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")))
FENCE = "```"
FIXTURE = "anabranch_broker"

NAMES = {
    "client": "AsyncClient",
    "consumer": "Any",
    "charge": "Callable[[str | None, bytes], Awaitable[None]]",
    "store": "Callable[[object, bytes], None]",
    "results": "object",
    "spark": "Any",
    "query": "Any",
    "url": "str",
}
"""The names that a block may use without making them, and their types."""

ELSEWHERE = {
    "Bench": "anabranch.apps",
    "BenchPublished": "anabranch.apps",
    "HandlerOptions": "anabranch.apps",
    "LocalBroker": "anabranch.testing.local_broker",
    "Telemetry": "anabranch.otel",
    "TopicName": "anabranch.model.names",
    FIXTURE: "anabranch.testing.pytest_broker",
    "plain": "anabranch.admin.models.body",
}
"""The modules of public names that `anabranch` itself does not list, without those of `SPARK`."""

SPARK = {name: module.__name__ for module in (spark, pipelines) for name in module.__all__}
"""The modules of public names whose examples need a Spark session, named `spark` there."""

PUBLIC = (*anabranch.__all__, *ELSEWHERE)
"""All names whose docstrings have an example, without those of `SPARK`."""

PREAMBLE = """\
from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from anabranch import *


"""


class Snippet(NamedTuple):
    """One block of a document."""

    document: str
    line: int
    """The line of the fence that opens it."""
    kind: str
    """The words behind the fence, such as `python` or `sh`."""
    section: str
    """The heading above it."""
    text: str

    @property
    def title(self) -> str:
        return f"{self.document}:{self.line}"


def snippets(document: str) -> Iterator[Snippet]:
    """The blocks of a document, in order."""
    opened: tuple[int, str, str] | None = None
    section, body = "", list[str]()
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        if not line.startswith(FENCE):
            body.append(line)
            if opened is None and line.startswith("## "):
                section = line.removeprefix("## ")
        elif opened is None:
            opened, body = (number, line.removeprefix(FENCE), section), []
        else:
            yield Snippet(document, *opened, "".join(f"{each}\n" for each in body))
            opened = None


def module_of(snippet: Snippet) -> str:
    """Return the block as a module for mypy. Names that the block defines itself are not arguments."""
    taken = re.findall(r"^(?:(?:async )?def |class |(?=\w+ = ))(\w+)", snippet.text, re.MULTILINE)
    taken += re.findall(r"\bas (\w+):$", snippet.text, re.MULTILINE)
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in NAMES.items() if name not in taken)
    return f"{PREAMBLE}async def snippet({arguments}) -> None:\n{textwrap.indent(snippet.text, '    ')}"


def documented() -> set[tuple[str, str]]:
    """Each module below `anabranch` and each name that a block of Python imports from it."""
    blocks = (one.text for document in DOCUMENTS for one in snippets(document) if one.kind == "python")
    found = (
        (part.module or "", name.name)
        for block in blocks
        for part in ast.walk(ast.parse(block))
        if isinstance(part, ast.ImportFrom)
        for name in part.names
    )
    return {(module, name) for module, name in found if module.startswith("anabranch.")}


def public(name: str) -> Any:
    """The object of a public name."""
    return getattr(import_module((ELSEWHERE | SPARK).get(name, "anabranch")), name)


def example_of(name: str) -> str:
    """The code in the docstring of a public name: behind "Example:", or behind the marks of doctest."""
    text = inspect.getdoc(public(name)) or ""
    if ">>> " in text:
        return "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    inline = re.search(r"Example: `(.+)`", text)
    if inline is not None:
        return inline[1]
    _, found, below = text.partition("Example:\n")
    return textwrap.dedent(below) if found else ""


def _module_without_arguments(code: str, fixtures: str = "") -> str:
    body = textwrap.indent(code, "    ")
    homes = {**ELSEWHERE, **dict.fromkeys([*spark.__all__, "pipelines"], spark.__name__)}
    imports = "".join(f"from {module} import {name}\n" for name, module in homes.items() if name != FIXTURE)
    return (
        f"{PREAMBLE}import json\nimport random\n{imports}\n\nasync def example({fixtures}) -> None:\n{body}\n"
    )


def _cells_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for document in DOCUMENTS:
        for snippet in snippets(document):
            if snippet.kind == "python":
                name = re.sub(r"\W", "_", document.removesuffix(".md")) + f"_{snippet.line}.py"
                (folder / name).write_text(module_of(snippet))
    for name in (*PUBLIC, *SPARK):
        given = "spark: Any" if name in SPARK else f"{FIXTURE}: LocalBroker"
        module = _module_without_arguments(example_of(name), given)
        (folder / f"docstring_of_{name}.py").write_text(module)
    for notebook in (ROOT / "examples").rglob("*.ipynb"):
        (folder / f"notebook_{notebook.stem}.py").write_text(_module_without_arguments(_cells_of(notebook)))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
