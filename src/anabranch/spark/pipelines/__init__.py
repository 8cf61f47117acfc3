"""Ready-made data pipelines as functions: each takes a Spark session, and resumes after a kill.

`anabranch pipeline ...` calls the same functions. Importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "ArchiveOptions": "archiving",
    "CompactOptions": "compacting",
    "Expectations": "verify_pass",
    "LoadOptions": "load_messages",
    "MirrorOptions": "mirroring",
    "ReplayOptions": "replaying",
    "SkewOptions": "weighing",
    "SkewReport": "weighing",
    "TopicPlace": "places",
    "VerifyReport": "verifying",
    "archive": "archiving",
    "compact_to_table": "compacting",
    "compact_to_topic": "compacting",
    "load": "loading",
    "make_session": "sessions",
    "mirror": "mirroring",
    "read_archive": "replaying",
    "read_table": "replaying",
    "replay": "replaying",
    "replay_stream": "replaying",
    "replay_to_topic": "replaying",
    "shown": "progress",
    "save_plot": "skew_plot",
    "silent": "progress",
    "skew": "weighing",
    "text_plot": "skew_plot",
    "verify": "verifying",
}
"""By public name: the module of this package that defines it; a module has another name than its function."""

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
