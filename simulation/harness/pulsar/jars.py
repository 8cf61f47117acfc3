"""Pulsar's jars from Maven Central, resolved once per version, and the command of a JVM on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

LTS: Final = "4.0.7"
"""The version of clusters below a control plane."""
BUILT: Final = Path("build")
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
SOON_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For tests: the JVM starts faster, but runs slower."""
DRIVERS: Final = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
LOG4J: Final = """\
<Configuration><Appenders><Console name="out"/></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class UnresolvedError(Exception):
    """The jars of this version could not be found."""


class PulsarJars(NamedTuple):
    """The jars of one version."""

    classpath: str

    @classmethod
    def resolve(cls, version: str = LTS) -> PulsarJars:
        """Find the jars, which downloads some 250 MB the first time; raises UnresolvedError."""
        if shutil.which("java") is None or shutil.which("mvn") is None:
            raise UnresolvedError(f"Pulsar {version} needs java and mvn")
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
                raise UnresolvedError(f"Pulsar {version} could not be resolved: {error}") from error
            found.rename(jars)
        return cls(jars.read_text().strip())

    def command(self, scratch: Path, jvm: Sequence[str], main: Sequence[str]) -> list[str]:
        """The command that runs a main class with its arguments; its log goes to standard output."""
        log4j = scratch / "log4j2.xml"
        log4j.write_text(LOG4J)
        command = ["java", *jvm]
        command += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        command += [f"-Dbookkeeper.metadata.bookie.drivers={DRIVERS}BookieDriver"]
        command += [f"-Dbookkeeper.metadata.client.drivers={DRIVERS}ClientDriver"]
        return [*command, f"-Dlog4j.configurationFile={log4j}", "-cp", self.classpath, *main]


def write_properties(file: Path, settings: dict[str, object]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


def _pom(version: str) -> str:
    wanted = [
        *([FIRST[version]] if version in FIRST else []),
        ("org.apache.pulsar", "pulsar-broker", version),
    ]
    named = (DEPENDENCY.format(group=group, artifact=artifact, version=v) for group, artifact, v in wanted)
    return POM.format(dependencies="".join(named))
