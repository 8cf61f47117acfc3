"""Starts a Spark session, runs one pipeline in it and prints its summary."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from anabranch.cli.pipelines.options import PipelineOptions
from anabranch.cli.role import ClientRole, role_of, without_credentials
from anabranch.cli.signals import ended_by_signals
from anabranch.errors import InvalidConfigurationError
from anabranch.spark.pipelines.failures import spark_failures
from anabranch.spark.pipelines.progress import Show, shown
from anabranch.spark.pipelines.sessions import session_for
from anabranch.spark.pipelines.topic_places import TopicPlace

_TLS = {
    "tls_trust_certs_file_path": "client.tlsTrustCertsFilePath",
    "tls_certificate_file_path": "client.tlsCertificateFilePath",
    "tls_private_key_file_path": "client.tlsKeyFilePath",
    "tls_allow_insecure_connection": "client.tlsAllowInsecureConnection",
    "tls_validate_hostname": "client.tlsHostnameVerificationEnable",
}

Report = Mapping[str, Any]
"""The summary of a run, as it is printed."""

OptionPart = Callable[[Mapping[str, str]], dict[str, str]]
"""Which options of a command count for a topic."""

_ACTIONS = {
    "archive": "lake",
    "load": "lake",
    "replay": "lake",
    "compact": "lake",
    "mirror": "proofs",
    "skew": "proofs",
    "verify": "proofs",
}
"""By pipeline: the module of this package with a function of its name, from PipelineJob to Report."""


@dataclass(frozen=True)
class PipelineJob:
    """One run of the command: its words, the session, and the progress display."""

    words: SimpleNamespace
    """The parameters of the command by their names; `at` has those that all pipelines share."""
    spark: Any
    show: Show
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def place(self, topic: str, part: OptionPart = dict) -> TopicPlace:
        """Return the place of a topic, reached with the role of the command and a part of its `--option`s."""
        role = role_of(self.words.at, self.environment)
        given = part(pairs(self.words.at.options, "--option"))
        return TopicPlace(topic, role.service_url, {**role_to_options(role, self.environment), **given})

    def at_target(self) -> PipelineJob:
        """Return this run as it counts for the broker that a mirror writes to.

        Another broker than the source's gets no credentials but its own, because a broker that receives a
        token can use the role.
        """
        here, there = self.words.at, self.words.there
        token_file, environment = there.to_token_file or here.token_file, self.environment
        client_conf = there.to_client_conf or here.client_conf
        if there.to_url or there.to_client_conf:
            token_file, client_conf = there.to_token_file, there.to_client_conf
            environment = without_credentials(environment)
        at = replace(
            here,
            url=there.to_url or here.url,
            client_conf=client_conf,
            token_file=token_file,
            options=there.to_options,
        )
        return replace(self, words=SimpleNamespace(at=at), environment=environment)


def run(name: str, words: SimpleNamespace) -> int:
    # A wrong role is reported before Spark starts, which takes seconds.
    at: PipelineOptions = words.at
    role_of(at, os.environ)
    conf = pairs(at.spark_conf, "--spark-conf")
    action = _action(name)
    with (
        ended_by_signals(),
        spark_failures(),
        session_for(f"anabranch {name}", master=at.master, conf=conf) as spark,
        shown(name) as show,
    ):
        report = action(PipelineJob(words, spark, show))
    _print(report, as_json=at.as_json)
    return int(report.get("exit", 0))


def _action(name: str) -> Callable[[PipelineJob], Report]:
    module = import_module(f"anabranch.cli.pipelines.{_ACTIONS[name]}")
    found: Callable[[PipelineJob], Report] = getattr(module, name)
    return found


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: value for name, value in report.items() if name not in ("exit", "text")}))
    else:
        print(report["text"], file=sys.stderr)


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Return KEY=VALUE words as a dictionary; raises InvalidConfigurationError."""
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidConfigurationError(f"{option} {word!r} is not of the form NAME=VALUE")
        found[name] = value
    return found


def role_to_options(role: ClientRole, environment: Mapping[str, str]) -> dict[str, object]:
    """Return the options of the Spark format that prove the role and describe its TLS.

    The value of an environment variable is read here, because executors have another environment. Spark
    hides the values of these options in its texts.
    """
    plugin, parameters = role.credentials
    found: dict[str, object] = {}
    if plugin == "token" and parameters.startswith("env:"):
        found["client.auth.token"] = environment.get(parameters.removeprefix("env:"), "")
    elif plugin:
        found |= {"authPluginClassName": plugin, "client.auth.secretParams": parameters}
    if role.service_url.startswith("pulsar+ssl:"):
        found |= {_TLS[name]: value for name, value in role.tls.items() if name in _TLS}
    return found
