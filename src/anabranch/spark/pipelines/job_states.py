"""The job that a state directory belongs to. Another job would resume from progress that is not its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from anabranch.errors import ConflictError, InvalidConfigurationError
from anabranch.spark.pipelines.files import Files

OWNER = "pipeline.json"
"""The file of a state directory with its job."""

BEGUN = ("offsets", "plans")
"""The first directories of progress: of a checkpoint of Spark, and of a load."""


def claim_state(files: Files, job: Mapping[str, str]) -> None:
    """Record the job of a state directory; raise InvalidConfigurationError if it is another one.

    A job without progress loses its state to the next one. A state of an older version has no record, and
    gets one. Brokers are not compared: their addresses may change.
    """
    found = _owner(files)
    if found != dict(job) and (found is None or not any(map(files.exists, BEGUN))):
        files.delete(OWNER)
        # Of two runs that start at the same time, one writes the record.
        with suppress(ConflictError):
            files.create_json(OWNER, {"v": 1, "job": dict(job)})
        found = _owner(files)
    if found is not None and found != dict(job):
        raise InvalidConfigurationError(
            f"{files.root} has the progress of another job ({_text(found)}); this one "
            f"({_text(job)}) needs a state directory of its own"
        )


def _owner(files: Files) -> dict[str, str] | None:
    if not files.exists(OWNER):
        return None
    found: dict[str, str] = files.read_json(OWNER)["job"]
    return found


def _text(job: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in job.items())
