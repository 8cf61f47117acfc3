"""Ready-made data pipelines as functions. Each takes a Spark session, and resumes if it was killed.

`anabranch pipeline ...` calls the same functions. Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "ArchiveOptions": "lake.archiving",
    "CompactOptions": "lake.compacting",
    "Expectations": "proofs.verify_pass",
    "LoadOptions": "loading.messages",
    "MirrorOptions": "mirroring",
    "ReplayOptions": "lake.replaying",
    "SkewOptions": "proofs.weighing",
    "SkewReport": "proofs.weighing",
    "TopicPlace": "topic_places",
    "VerifyReport": "proofs.verifying",
    "archive": "lake.archiving",
    "compact_to_table": "lake.compacting",
    "compact_to_topic": "lake.compacting",
    "load": "loading.load_job",
    "make_session": "sessions",
    "mirror": "mirroring",
    "read_archive": "lake.replaying",
    "read_table": "lake.replaying",
    "replay": "lake.replaying",
    "replay_stream": "lake.replaying",
    "replay_to_topic": "lake.replaying",
    "shown": "progress",
    "save_plot": "proofs.skew_plot",
    "silent": "progress",
    "skew": "proofs.weighing",
    "text_plot": "proofs.skew_plot",
    "verify": "proofs.verifying",
}
"""The module that defines each public name. No module has the name of a function, which would hide it."""

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
