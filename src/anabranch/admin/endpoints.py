"""The form of an admin call: its path, its query, and the types of its body and its answer.

The types are models (`models/`), or builtin types of them. The answer's type is that of the handler, so the
description of the API cannot promise another one. This module must not know how a call is served.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, get_type_hints

PATH_PART: Final = re.compile(r"\{(\w+)(:path)?\}")
"""A named part of a template; one with `:path` may contain slashes."""


@dataclass(frozen=True)
class CallForm:
    """The parts that a caller sends and receives."""

    method: str
    path: str
    """The template, with the named parts in braces."""
    handler: Callable[..., Any]
    body: Any = None
    """The type of the body; None for a call that takes none."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """The types of the parameters after the question mark, which are all optional."""
    returns: Any = None
    """The type of the answer of a handler that makes its Response itself; `bytes` is a payload."""

    @property
    def parts(self) -> list[str]:
        """The names of the parts of the path."""
        return [name for name, _ in PATH_PART.findall(self.path)]

    @cached_property
    def answer(self) -> Any:
        """The type of the answer; `type(None)` for an answer without content."""
        return self.returns or get_type_hints(self.handler).get("return", Any)

    @property
    def summary(self) -> str:
        """The first sentence about the handler, or its name in words."""
        text = inspect.getdoc(self.handler) or self.handler.__name__.replace("_", " ").strip()
        return text.split("\n", 1)[0]
