"""`anabranch pipeline`: its words and the options that carry the role into Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.cli.main import main
from anabranch.cli.pipelines.options import PipelineOptions, TargetOptions
from anabranch.cli.pipelines.starting import PipelineJob, pairs, role_to_options
from anabranch.cli.role import ClientRole, role_of
from anabranch.errors import InvalidConfigurationError
from anabranch.spark.pipelines.lake.archiving import check_format


def role(environment: dict[str, str] | None = None, **options: str) -> ClientRole:
    words = {"client_conf": None, "token_file": None, "tls_trust_certs": None, **options}
    return role_of(SimpleNamespace(**words), environment or {})


def test_a_command_without_credentials_needs_no_option() -> None:
    assert role_to_options(role(), {}) == {}


def test_a_token_file_is_read_where_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert role_to_options(role(token_file=str(file)), {}) == {
        "authPluginClassName": "token",
        "client.auth.secretParams": file.as_uri(),
    }


def test_a_token_of_the_environment_travels_in_a_hidden_option() -> None:
    environment = {"ANABRANCH_TOKEN": "secret"}
    assert role_to_options(role(environment), environment) == {"client.auth.token": "secret"}


def test_tls_travels_with_a_tls_url_only() -> None:
    assert role_to_options(role(tls_trust_certs="/ca.pem"), {}) == {}
    found = role_to_options(role(tls_trust_certs="/ca.pem", url="pulsar+ssl://host:6651"), {})
    assert found == {"client.tlsTrustCertsFilePath": "/ca.pem"}


def places_of_a_mirror(environment: dict[str, str] | None = None, **words: Any) -> list[tuple[str, object]]:
    """The address and the options of the source and of the target."""
    here = PipelineOptions(**{name: word for name, word in words.items() if not name.startswith("to_")})
    there = TargetOptions(**{name: word for name, word in words.items() if name.startswith("to_")})
    job = PipelineJob(SimpleNamespace(at=here, there=there), None, lambda _: None, environment or {})
    return [
        (place.url, dict(place.options)) for place in (job.place("orders"), job.at_target().place("copy"))
    ]


OTHER = "pulsar://other:6650"


def test_another_broker_gets_no_credentials_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("authPlugin=token\nauthParams=token:of-the-source\n")
    conf = str(tmp_path / "conf")
    hidden: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"ANABRANCH_TOKEN": "secret"}, {}),
        ({"ANABRANCH_AUTH_PLUGIN": "token", "ANABRANCH_AUTH_PARAMS": "token:secret"}, {}),
        ({"ANABRANCH_CLIENT_CONF": conf}, {}),
        ({}, {"token_file": "/token"}),
        ({}, {"client_conf": conf}),
    ]
    for environment, words in hidden:
        source, target = places_of_a_mirror(environment, to_url=OTHER, **words)
        assert source[1] != {}
        assert target == (OTHER, {})


def test_another_broker_gets_the_credentials_that_are_given_for_it() -> None:
    _, target = places_of_a_mirror({"ANABRANCH_TOKEN": "secret"}, to_url=OTHER, to_token_file="/token")
    assert target == (OTHER, {"authPluginClassName": "token", "client.auth.secretParams": "file:///token"})


def test_a_copy_on_the_same_broker_uses_the_role_of_the_source() -> None:
    source, target = places_of_a_mirror({"ANABRANCH_TOKEN": "secret"})
    assert source == target
    assert target[1] == {"client.auth.token": "secret"}


def test_words_of_another_form_are_refused() -> None:
    assert pairs(["a=1", "b=x=y"], "--option") == {"a": "1", "b": "x=y"}
    with pytest.raises(InvalidConfigurationError, match="--option 'a' is not of the form NAME=VALUE"):
        pairs(["a"], "--option")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["archive", "orders"],
        ["replay", "/lake"],
        ["compact", "orders", "--to", "a", "--table", "b"],
        ["no-such-pipeline"],
        ["archive", "orders", "/lake", "--buckets", "0"],
        ["archive", "orders", "/lake", "--file-mb", "0"],
        ["load", "a.csv", "orders", "--rows-per-commit=-1"],
        ["replay", "/lake", "--print", "--limit", "0"],
        ["compact", "orders", "--table", "/lake", "--buckets=-3"],
        ["compact", "orders", "--to", "latest", "--buckets", "3"],
        ["skew", "orders", "--segments", "0"],
        ["skew", "orders", "--interval", "0"],
    ],
)
def test_wrong_words_of_a_pipeline_leave_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pipeline", *words])
    assert left.value.code == 2
    assert "usage: anabranch pipeline" in capsys.readouterr().err.lower()


def test_a_wrong_setting_is_reported_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "archive", "orders", "/lake", "--spark-conf", "x"]) == 1
    assert "--spark-conf 'x' is not of the form" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["delta", "iceberg", "orc"])
def test_a_format_that_does_not_work_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="use parquet"):
        check_format(name)
    check_format("parquet")
