"""An endpoint of the admin API, declared once, beside its handler.

Everything else follows from the declaration: the route and the check of rights (`http/calls.py`), the OpenAPI
document (`openapi.py`), and the requests that both admin clients send (`client/calls.py`, which
`tools/generate_admin.py` writes). This module must not know how a call is served.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, get_type_hints

from anabranch.rights.rows import RightRow

PATH_PART: Final = re.compile(r"\{(\w+)(:path)?\}")
"""A named part of a template; one with `:path` may contain slashes."""


@dataclass(frozen=True)
class AdminEndpoint:
    """A method and a path with its right, its query, its body and the function that answers.

    The types of bodies and answers are models (`models/`) or builtin types of them.
    """

    method: str
    path: str
    """The template, with the named parts in braces."""
    right: RightRow
    """The right that a caller needs, and the resource that it needs it on, by the parts of the path."""
    handler: Callable[..., Any]
    body: Any = None
    """The type of the body; None for a call without one."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """The types of the parameters after the question mark. All of them are optional."""
    returns: Any = None
    """The type of the answer of a handler that makes its Response itself; `bytes` is a payload."""
    client: str = ""
    """The name of this request in admin clients, if they make it.

    Endpoints for several kinds of resources may share a name. The client then chooses one by the resource.
    """

    @property
    def parts(self) -> list[str]:
        """The names of the parts of the path."""
        return [name for name, _ in PATH_PART.findall(self.path)]

    @cached_property
    def answer(self) -> Any:
        """The type of the answer; `type(None)` for an answer without content.

        It is taken from the handler, so that the description of the API cannot promise another type.
        """
        return self.returns or get_type_hints(self.handler).get("return", Any)

    @property
    def summary(self) -> str:
        """The first sentence about the handler, or its name in words."""
        text = inspect.getdoc(self.handler) or self.handler.__name__.replace("_", " ").strip()
        return text.split("\n", 1)[0]
