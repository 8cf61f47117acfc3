"""The error of a failed pipeline, with the reason that Spark gave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.errors import AnabranchError


class PipelineError(AnabranchError):
    """A Spark job of a pipeline failed. Once the cause is removed, the same call resumes it."""


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn an error of Spark into a PipelineError; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        if not _is_from_spark(error):
            raise
        raise PipelineError(reason_of(error)) from error


def _is_from_spark(error: Exception) -> bool:
    # Imported late: commands without Spark load this module.
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


def reason_of(error: Exception) -> str:
    """Return the sentence that explains a failed Spark job, without the traces of Python and Java."""
    text = str(error)
    ours = re.findall(r"anabranch\.[\w.]+Error: (.+)", text)
    if ours:
        return str(ours[-1])
    # A Java error begins with the call from Python, and has a line for each cause.
    causes = re.findall(r"^(?:: |Caused by: )[\w.$]+: (.+)", text, re.MULTILINE)
    if text.startswith("An error occurred while calling") and causes:
        return " ".join(dict.fromkeys((causes[0], causes[-1])))
    for tail in ("\n\nJVM stacktrace", "\n\tat ", "\n== DataFrame =="):
        text = text.strip().partition(tail)[0]
    return text
