"""The options of `anabranch pipeline`. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli import pipeline_lake_parser, pipeline_proofs_parser
from anabranch.cli.pipeline_options import run_pipeline
from anabranch.cli.topic_parser import Commands

EPILOG = """\
examples:
  anabranch pipeline archive orders /lake/orders             all messages so far into Parquet files
  anabranch pipeline load events.csv orders --key customer   rows of a file as messages, each exactly once
  anabranch pipeline replay /lake/orders orders --to again   the archive, then the live topic, into a topic
  anabranch pipeline compact orders --table /lake/latest     the latest value of each key
  anabranch pipeline verify orders                           prove that nothing was lost or reordered
  anabranch pipeline skew orders --plot orders.png           heavy keys, and where to split
  anabranch pipeline mirror orders orders --to-url URL       a copy on another broker

A pipeline that was interrupted resumes where it was when the same command runs again. On a cluster, pass
--master, or run the command with `spark-submit`; every path may be a URL that Spark opens, such as s3a:// or
hdfs://.
"""


def add_pipeline(commands: Commands) -> None:
    parser = commands.add_parser(
        "pipeline",
        help="archive, load, replay, compact, verify, weigh and mirror topics with Spark",
        description="Run a ready-made data pipeline as a Spark job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="pipelines", metavar="PIPELINE", required=True)
    pipeline_lake_parser.add_lake_pipelines(actions)
    pipeline_proofs_parser.add_proof_pipelines(actions)
    parser.set_defaults(run=run_pipeline)
