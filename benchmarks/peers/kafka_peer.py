"""A real Kafka beside us: its jars and Spark's Kafka connector from Maven Central, and one KRaft node."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

VERSION: Final = "4.2.0"
PEER: Final = f"Kafka {VERSION}"
BUILT: Final = Path("build") / f"kafka-{VERSION}"
READY_S: Final = 60.0
RESOLVE_S: Final = 900.0
PARTITIONS: Final = 2
"""Partitions of a topic: one for each core that Spark has, which suits the peer best."""

POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>anabranch</groupId>
  <artifactId>kafka-peer</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
CONNECTOR: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
"""Jars of the connector, in the newest published versions that run together with PySpark 4.3.

They are copied one by one, because PySpark has the rest of what they need.
"""
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
NO_SETTINGS: Final[Mapping[str, object]] = {}
FSYNC: Final[Mapping[str, object]] = {"log.flush.interval.messages": 1}
"""Kafka confirms an append after it is on disk, as our broker does."""


class KafkaPeer:
    """Kafka's jars, ready to start, and the jars of Spark's connector."""

    def __init__(self, classpath: str, connector: Sequence[Path]) -> None:
        self._classpath = classpath
        self.connector = connector

    @classmethod
    def find(cls, *, connector: bool = True) -> KafkaPeer | None:
        """Resolve the jars once; None, with a line on standard error, if that is not possible.

        Without `connector` the jars of Spark's connector are left out.
        """
        if shutil.which("java") is None or shutil.which("mvn") is None:
            _report_absence("needs java and mvn")
            return None
        try:
            return cls(_classpath(), _connector() if connector else ())
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            _report_absence(f"could not be resolved: {error}")
            return None

    @contextlib.contextmanager
    def started(self, scratch: Path, settings: Mapping[str, object] = NO_SETTINGS) -> Iterator[str]:
        """Run one node that is broker and controller; yields its address."""
        process, address = self.launch(scratch, settings)
        try:
            yield address
        finally:
            process.kill()
            process.wait()

    def launch(self, scratch: Path, settings: Mapping[str, object]) -> tuple[subprocess.Popen[bytes], str]:
        """Start a node that goes on after this process; returns it with its address when it is ready."""
        scratch.mkdir(parents=True)
        port, controller_port = _free_port(), _free_port()
        config = scratch / "server.properties"
        config.write_text(_settings(port, controller_port, scratch / "logs", settings))
        java = ["java", "-Xmx1g", "-cp", self._classpath]
        with (scratch / "kafka.log").open("w") as log:
            form = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
            subprocess.run(form, check=True, stdout=log, stderr=log, timeout=READY_S)
            serve = [*java, "kafka.Kafka", str(config)]
            process = subprocess.Popen(serve, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_ready(process, port, scratch / "kafka.log")
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process, f"127.0.0.1:{port}"


def _maven(*arguments: str) -> None:
    subprocess.run(["mvn", "-B", "-q", *arguments], check=True, capture_output=True, timeout=RESOLVE_S)


def _classpath() -> str:
    jars = BUILT / "classpath.txt"
    if not jars.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        (BUILT / "pom.xml").write_text(POM)
        found = jars.with_suffix(".new")
        _maven(
            "-f", str(BUILT / "pom.xml"), f"{PLUGIN}:build-classpath", f"-Dmdep.outputFile={found.absolute()}"
        )
        found.rename(jars)
    return jars.read_text().strip()


def _connector() -> list[Path]:
    directory = (BUILT / "connector").absolute()
    jars = []
    for group, name, version in CONNECTOR:
        jar = directory / f"{name}-{version}.jar"
        if not jar.exists():
            _maven(f"{PLUGIN}:copy", f"-Dartifact={group}:{name}:{version}", f"-DoutputDirectory={directory}")
        jars.append(jar)
    return jars


def _report_absence(why: str) -> None:
    print(f"{PEER} {why}; continuing without it", file=sys.stderr)


def _settings(port: int, controller_port: int, logs: Path, more: Mapping[str, object]) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": logs,
        "num.partitions": PARTITIONS,
        "offsets.topic.replication.factor": 1,
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.3)
    raise RuntimeError(f"{PEER} did not become ready:\n{log.read_text()[-4000:]}")
