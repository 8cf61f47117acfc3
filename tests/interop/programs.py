"""Fetches the jars of Pulsar, and builds the Java and Go programs of these tests: `make programs`.

The first download takes minutes on a slow network, and a test that waited for it would exceed its time.
"""

from __future__ import annotations

from simulation.harness.pulsar.jars import LTS, PulsarJars
from tests.interop.building import JAVA, go_program, java_classpath

VERSIONS = (LTS, "5.0.0-M1")


def main() -> None:
    for version in VERSIONS:
        PulsarJars.resolve(version)
    for project in JAVA:
        java_classpath(project)
    go_program("features")


if __name__ == "__main__":
    main()
