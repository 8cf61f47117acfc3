"""The error of pipelines."""

from __future__ import annotations

from anabranch.errors import AnabranchError


class PipelineError(AnabranchError):
    """A Spark job of a pipeline failed; the same call resumes it when the reason is gone."""
