"""The options that all pipelines share. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.role_options import add_role_options
from anabranch.cli.topic_parser import Commands

TOPIC_HELP = "topic://tenant/namespace/name, or a bare name of public/default"


def add_one(actions: Commands, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """Add the parser of one pipeline, with the options that all of them have."""
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}".strip()
    )
    made.set_defaults(run=run_pipeline, action=name)
    return made


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options that all pipelines have, behind those of one pipeline."""
    broker = parser.add_argument_group("broker")
    broker.add_argument(
        "--url",
        "--service-url",
        dest="url",
        metavar="URL",
        help="the broker's address; or ANABRANCH_URL (pulsar://127.0.0.1:6650)",
    )
    add_role_options(broker)
    broker.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the Spark source or sink (docs/spark.md), such as client.operationTimeout=60s; "
        "may be repeated",
    )
    spark = parser.add_argument_group("Spark")
    spark.add_argument("--master", metavar="URL", help="the Spark master, such as local[4] (Spark's default)")
    spark.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.driver.memory=4g; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def add_state(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--state",
        metavar="DIR",
        help=f"directory or URL for the progress of this pipeline, from which it resumes ({default})",
    )


def run_pipeline(arguments: argparse.Namespace) -> int:
    from anabranch.cli import pipeline

    return pipeline.run(arguments)
