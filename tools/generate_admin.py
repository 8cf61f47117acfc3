"""Write what follows from the endpoints of the admin API, and the blocking admin client.

`client/calls.py` has the requests of all endpoints that admin clients call. `client/blocking/` has the
methods of `client/asynchronous/` without `async` and `await`. `--check` only says whether files are stale.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.models.body import Body
from anabranch.admin.routes.table import ENDPOINTS

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src/anabranch/admin/client"
RULES = (
    (r"\basync (def|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"client\.async_http\b", "client.http_client"),
    (r"client\.asynchronous\b", "client.blocking"),
    (r"\bAsync(?=[A-Z])", ""),
)
NOTE = "# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one."
CALLS_HEAD = '''# Made by tools/generate_admin.py of the endpoints in admin/routes: change those.

"""The requests of admin clients, one for each name that endpoints give to clients."""

from __future__ import annotations

from typing import Any, Final

from anabranch.admin.client.requests import AdminCall, message, nothing, optional, value
'''


def calls() -> str:
    """Return the module with the requests of all endpoints that have a name in clients."""
    named: dict[str, list[AdminEndpoint]] = {}
    for endpoint in ENDPOINTS:
        if endpoint.client:
            named.setdefault(endpoint.client, []).append(endpoint)
    used = {kind for some in named.values() for one in some for kind in _bodies(one.answer)}
    imports = [f"from {kind.__module__} import {kind.__name__}" for kind in used]
    return "\n".join([CALLS_HEAD, *imports, "", *(_call(name, some) for name, some in sorted(named.items()))])


def _call(name: str, endpoints: list[AdminEndpoint]) -> str:
    """Return the constant of a request, whose endpoints may differ in their paths only."""
    methods, readers = {one.method for one in endpoints}, {_reader(one.answer) for one in endpoints}
    assert len(methods) == len(readers) == 1, f"the endpoints of {name} differ"
    paths = tuple(one.path for one in endpoints)
    query = tuple(endpoints[0].query)
    assert all(tuple(one.query) == query for one in endpoints), f"the endpoints of {name} differ"
    given = [repr(methods.pop()), readers.pop(), repr(paths), *([repr(query)] if query else [])]
    return f"{name.upper()}: Final = AdminCall({', '.join(given)})"


def _reader(answer: Any) -> str:
    """Return the expression that reads an answer of this type."""
    if answer is NoneType:
        return "nothing"
    if answer is bytes:
        return "message"
    present = [kind for kind in get_args(answer) if kind is not NoneType]
    if NoneType in get_args(answer):
        return f"optional({_source(present[0])})"
    return "optional(Any)" if answer is Any else f"value({_source(answer)})"


def _source(kind: Any) -> str:
    if inspect.isclass(kind) and not get_args(kind):
        return kind.__name__
    return re.sub(r"\banabranch[\w.]*\.", "", repr(kind))


def _bodies(kind: Any) -> Iterator[type]:
    if inspect.isclass(kind) and issubclass(kind, Body):
        yield kind
    for part in get_args(kind):
        yield from _bodies(part)


def blocking(text: str) -> str:
    """Return the blocking form of an asynchronous module."""
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return f"{NOTE}\n\n{text}"


def formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [str(ruff), *arguments, "--stdin-filename", str(CLIENT / "module.py"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    modules = [path for path in sorted((CLIENT / "asynchronous").glob("*.py")) if path.name != "__init__.py"]
    made = {CLIENT / "blocking" / path.name: blocking(path.read_text()) for path in modules}
    stale = []
    for target, text in {CLIENT / "calls.py": calls(), **made}.items():
        text = formatted(text)
        if target.exists() and target.read_text() == text:
            continue
        stale.append(str(target.relative_to(ROOT)))
        if "--check" not in sys.argv:
            target.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"make these again with tools/generate_admin.py: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
