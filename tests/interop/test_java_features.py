"""The usual features of the official Java clients against our broker.

Client and admin client of 4.0.7 use `persistent://` and `non-persistent://` topics, the V5 client of 5.0.0-M1
uses scalable topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    "exchange",
    "transactions",
]
LONG = [
    "types",
    "dead letter",
    "pattern",
    "interceptors",
    "batching",
    "delayed",
    "http",
    "restart",
    "workers",
]
"""Cases that the short form leaves to the clients of the other languages."""
SCALABLE = [
    "consumers",
    "namespaces",
    "chunking",
    "encryption",
    "schemas",
    "dead letter",
    "exchange",
    "transactions",
]
SCALABLE_LONG = ["batching", "delayed", "http", "restart"]


@contextmanager
def running(tmp: pytest.TempPathFactory, workers: int, project: str, program: str) -> Iterator[CaseProgram]:
    directory = tmp.mktemp("java")
    command = ["java", *JVM, *LOGGING, "-cp", java_classpath(project), f"anabranch.{program}"]
    with served(tmp, workers) as broker:
        made = CaseProgram(command, broker, make_keys(directory), directory / "java.log")
        yield made
        made.close()


@each_form
def classic(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseProgram]:
    with running(tmp_path_factory, request.param, "java-classic", "Features") as made:
        yield made


@each_form
def scalable(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseProgram]:
    with running(tmp_path_factory, request.param, "java-v5", "ScalableFeatures") as made:
        yield made


@pytest.mark.parametrize("case", SHORT if FAST else SHORT + LONG)
def test_the_java_client_has_the_feature(classic: CaseProgram, case: str) -> None:
    classic.run(case)


@pytest.mark.parametrize("case", ["live", "partitions"])
def test_the_java_client_uses_non_persistent_topics(classic: CaseProgram, case: str) -> None:
    classic.run(case, "non-persistent")


@pytest.mark.parametrize("case", SCALABLE if FAST else SCALABLE + SCALABLE_LONG)
def test_the_v5_client_has_the_feature(scalable: CaseProgram, case: str) -> None:
    scalable.run(case, "topic")
