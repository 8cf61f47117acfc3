"""The usual features of the official Java client 4.0.7, and of its admin client, against our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.building import JVM, java_classpath
from tests.interop.case_program import CaseProgram
from tests.interop.features import FAST, each_form, make_keys, served

# The first run downloads some 90 MB.
pytestmark = pytest.mark.timeout(900)

LOGGING = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
SHORT = [
    "failover",
    "readers",
    "seek",
    "chunking",
    "encryption",
    "schemas",
    "retry",
    "table view",
    "partitions",
    "admin",
]
LONG = ["types", "dead letter", "pattern", "interceptors", "batching", "delayed", "http", "restart"]
"""Cases that the short form leaves to the clients of the other languages."""


@each_form
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseProgram]:
    directory = tmp_path_factory.mktemp("java")
    command = ["java", *JVM, *LOGGING, "-cp", java_classpath("java-classic"), "anabranch.Features"]
    with served(tmp_path_factory, request.param) as broker:
        made = CaseProgram(command, broker, make_keys(directory), directory / "java.log")
        yield made
        made.close()


@pytest.mark.parametrize("case", SHORT if FAST else SHORT + LONG)
def test_the_java_client_has_the_feature(program: CaseProgram, case: str) -> None:
    program.run(case)
