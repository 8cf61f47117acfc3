"""The options that all pipelines share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from anabranch.cli.options import AsJson, ServiceOptions

SPARK: Final = Group("Spark", sort_key=110)
TARGET: Final = Group("Broker of the target, if it is another one", sort_key=90)
STATE: Final = "directory or URL for the progress of this pipeline, from which it resumes"

Follow = Annotated[
    str | None,
    Parameter(
        metavar="INTERVAL",
        help="go on with new messages at this interval, such as '10 seconds', until interrupted "
        "(end when all messages so far are done)",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PipelineOptions(ServiceOptions):
    """The options of the broker and of Spark."""

    options: Annotated[
        tuple[str, ...],
        Parameter(
            name="--option",
            metavar="NAME=VALUE",
            help="an option of the Spark source or sink (docs/spark.md), such as "
            "client.operationTimeout=60s; may be repeated",
        ),
    ] = ()
    master: Annotated[
        str | None,
        Parameter(group=SPARK, metavar="URL", help="the Spark master, such as local[4] (Spark's default)"),
    ] = None
    spark_conf: Annotated[
        tuple[str, ...],
        Parameter(
            group=SPARK,
            metavar="KEY=VALUE",
            help="a setting of Spark, such as spark.driver.memory=4g; may be repeated",
        ),
    ] = ()
    as_json: AsJson = False


@Parameter(name="*", group=TARGET)
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The broker that a mirror writes to."""

    to_url: Annotated[str | None, Parameter(metavar="URL", help="its address")] = None
    to_token_file: Annotated[
        str | None, Parameter(metavar="FILE", help="file with the token that proves the role there")
    ] = None
    to_client_conf: Annotated[
        str | None, Parameter(metavar="FILE", help="file like Pulsar's client.conf")
    ] = None
    to_options: Annotated[
        tuple[str, ...],
        Parameter(name="--to-option", metavar="NAME=VALUE", help="an option of the Spark sink"),
    ] = ()


PIPELINE: Final = PipelineOptions()
HERE: Final = TargetOptions()
