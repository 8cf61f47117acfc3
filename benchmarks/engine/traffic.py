"""Our client on a scalable topic beside `pulsar-client` on a partitioned topic of the same cluster."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from anabranch.admin.client import AdminClient
from benchmarks.peers.children import Job, JobError
from benchmarks.peers.contender import Contender
from benchmarks.peers.official import OfficialPulsar
from benchmarks.peers.ours import OursAsync
from benchmarks.results import Row

SEGMENTS: Final = 4
CALL_S: Final = 60.0
CREATE_S: Final = 120.0

JOBS: Final = {
    "publish_each": "publish, each outcome known",
    "consume_each": "consume in order, each acknowledged",
    "consume_queue": "take from a queue, each acknowledged",
}
"""Each job of a contender, and its name in the table; the first fills the topic for the others."""


@dataclass(frozen=True)
class EngineTraffic:
    """Addresses of a control process and of the cluster below it."""

    control_url: str
    control_http_url: str
    pulsar_url: str
    pulsar_http_url: str

    def run(self, messages: int, rounds: int) -> list[Row]:
        """Each contender publishes and consumes in each round on new topics; its best round counts."""
        ours, official = OursAsync(self.control_url), OfficialPulsar(self.pulsar_url)
        best: dict[tuple[str, str], float] = defaultdict(float)
        with AdminClient(self.control_http_url) as admin:
            for number in range(rounds):
                topic = f"traffic-{number}"
                admin.create_topic(topic, segments=SEGMENTS, timeout=CREATE_S)
                create_partitioned(self.pulsar_http_url, f"{topic}-classic", SEGMENTS)
                _round(ours, f"topic://public/default/{topic}", messages, best)
                _round(official, f"{topic}-classic", messages, best)
        return [
            Row(
                f"{what}, {SEGMENTS} segments",
                "msg/s",
                best[ours.name, method],
                f"{official.name}, {SEGMENTS} partitions",
                best[official.name, method],
            )
            for method, what in JOBS.items()
        ]


def _round(contender: Contender, topic: str, messages: int, best: dict[tuple[str, str], float]) -> None:
    for method in JOBS:
        try:
            rate: float = Job(contender, method, topic, messages).result()
        except JobError as error:
            print(f"    {error}", file=sys.stderr, flush=True)
            continue
        best[contender.name, method] = max(best[contender.name, method], rate)


def create_partitioned(http_url: str, topic: str, partitions: int) -> None:
    """Create a partitioned topic of the default namespace; `http_url` may name several brokers."""
    first = http_url.partition(",")[0]
    _put(f"{first}/admin/v2/persistent/public/default/{topic}/partitions", partitions)


def _put(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    try:
        urllib.request.urlopen(request, timeout=CALL_S).close()
    except urllib.error.HTTPError as error:
        if error.code != 307:
            raise
        _put(error.headers["Location"], body)
