"""The usual features of the official Go client, and of its admin client, against our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.building import go_program
from tests.interop.case_program import CaseProgram
from tests.interop.features import each_form, make_keys, served

# The first run downloads and compiles the client.
pytestmark = pytest.mark.timeout(600)

CASES = [
    "types",
    "failover",
    "readers",
    "seek",
    "chunking",
    "encryption",
    "schemas",
    "bytes",
    "dead letter",
    "retry",
    "table view",
    "partitions",
    "pattern",
    "interceptors",
    "batching",
    "delayed",
    "http",
    "admin",
    "restart",
    "workers",
    "exchange",
    "transactions",
]


LIVE = ["live", "partitions"]
"""Cases on topics that store nothing."""


@each_form
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseProgram]:
    directory = tmp_path_factory.mktemp("go")
    with served(tmp_path_factory, request.param) as broker:
        made = CaseProgram([str(go_program("features"))], broker, make_keys(directory), directory / "go.log")
        yield made
        made.close()


@pytest.mark.parametrize("case", CASES)
def test_the_go_client_has_the_feature(program: CaseProgram, case: str) -> None:
    program.run(case)


@pytest.mark.parametrize("case", LIVE)
def test_the_go_client_uses_non_persistent_topics(program: CaseProgram, case: str) -> None:
    program.run(case, "non-persistent")
