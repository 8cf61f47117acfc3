"""A real Pulsar beside us: its jars from Maven Central, and one standalone process."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

VERSION: Final = "5.0.0-M1"
"""The version that we are measured beside."""
PEER: Final = f"Pulsar {VERSION}"
BUILT: Final = Path("build")
READY_S: Final = 300.0
RESOLVE_S: Final = 900.0

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>anabranch</groupId>
  <artifactId>pulsar-peer</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
DEPENDENCY: Final = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
"""
# Named first, so that Maven chooses the annotations that belong to it.
FIRST: Final = {"5.0.0-M1": ("com.fasterxml.jackson.core", "jackson-databind", "2.21.3")}
RESOLVE: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
OPENED: Final = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
FAST_JVM: Final = ("-Xmx2g", "-XX:MaxDirectMemorySize=4g")
SMALL_JVM: Final = (
    "-Xmx768m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
)
"""For tests: ready sooner, and slower later."""
DRIVERS: Final = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
LOG4J: Final = """\
<Configuration><Appenders><Console name="out"/></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class PulsarServer(NamedTuple):
    """The addresses of a running Pulsar."""

    url: str
    http_url: str


class PulsarPeer:
    """Pulsar's jars, ready to start."""

    def __init__(self, classpath: str) -> None:
        self._classpath = classpath

    @classmethod
    def find(cls, version: str = VERSION) -> PulsarPeer | None:
        """Resolve the jars once; None, with a line on standard error, if that is not possible."""
        if shutil.which("java") is None or shutil.which("mvn") is None:
            _report_absence(version, "needs java and mvn")
            return None
        built = BUILT / f"pulsar-{version}"
        jars = built / "classpath.txt"
        if not jars.exists():
            built.mkdir(parents=True, exist_ok=True)
            (built / "pom.xml").write_text(_pom(version))
            found = jars.with_suffix(".new")
            command = ["mvn", "-B", "-q", "-f", str(built / "pom.xml"), RESOLVE]
            command.append(f"-Dmdep.outputFile={found.absolute()}")
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=RESOLVE_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                _report_absence(version, f"could not be resolved: {error}")
                return None
            found.rename(jars)
        return cls(jars.read_text().strip())

    @contextlib.contextmanager
    def started(
        self,
        scratch: Path,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = FAST_JVM,
    ) -> Iterator[PulsarServer]:
        """Run a standalone Pulsar, with these settings on top of ours."""
        scratch.mkdir(parents=True)
        port, web_port = _free_port(), _free_port()
        config = scratch / "standalone.conf"
        config.write_text(_settings(port, web_port, settings or {}))
        (scratch / "log4j2.xml").write_text(LOG4J)
        command = ["java", *jvm]
        command += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        command += [f"-Dbookkeeper.metadata.bookie.drivers={DRIVERS}BookieDriver"]
        command += [f"-Dbookkeeper.metadata.client.drivers={DRIVERS}ClientDriver"]
        command += [f"-Dlog4j.configurationFile={scratch / 'log4j2.xml'}", "-cp", self._classpath]
        command += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(config), "-nss", "-nfw"]
        command += ["--bookkeeper-dir", str(scratch / "bookkeeper")]
        command += ["--metadata-dir", str(scratch / "metadata")]
        with (scratch / "pulsar.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=scratch)
        try:
            _wait_ready(process, web_port, scratch / "pulsar.log")
            yield PulsarServer(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{web_port}")
        finally:
            process.kill()
            process.wait()


def _report_absence(version: str, why: str) -> None:
    print(f"Pulsar {version} {why}; the figures stand without it", file=sys.stderr)


def _pom(version: str) -> str:
    wanted = [
        *([FIRST[version]] if version in FIRST else []),
        ("org.apache.pulsar", "pulsar-broker", version),
    ]
    named = (DEPENDENCY.format(group=group, artifact=artifact, version=v) for group, artifact, v in wanted)
    return POM.format(dependencies="".join(named))


def _settings(port: int, web_port: int, more: Mapping[str, object]) -> str:
    settings: dict[str, object] = {
        "clusterName": "standalone",
        "brokerServicePort": port,
        "webServicePort": web_port,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "allowLoopback": "true",
        "journalSyncData": "true",
        "brokerDeleteInactiveTopicsEnabled": "false",
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], web_port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    url = f"http://127.0.0.1:{web_port}/admin/v2/persistent/public/default"
    while process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.3)
    raise RuntimeError(f"Pulsar did not become ready:\n{log.read_text()[-4000:]}")
