"""A driver that archives a topic, or replays the archive and the topic into another one; a test kills it.

Arguments: the URL of the broker, a directory, and `archive`, `follow` or `end`.
"""

from __future__ import annotations

import sys

from anabranch.spark import pipelines

ROWS = 100
"""Rows of one commit."""


def main(url: str, root: str, work: str) -> None:
    spark = pipelines.make_session(
        "replay",
        master="local[2]",
        conf={"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
    orders, again = pipelines.TopicPlace("orders", url), pipelines.TopicPlace("again", url)
    lake = f"{root}/lake"
    if work == "archive":
        options = pipelines.ArchiveOptions(2, ROWS, join_from=5)
        print("result", pipelines.archive(spark, orders, lake, options), flush=True)
    else:
        follow = "0 seconds" if work == "follow" else None
        replay = pipelines.ReplayOptions(ROWS, follow, f"{root}/state")
        print("result", pipelines.replay_to_topic(spark, lake, orders, again, replay), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
