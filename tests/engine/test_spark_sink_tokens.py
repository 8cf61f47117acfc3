"""Exactly-once writes of Spark where both Pulsar and the control process ask each client for a token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch import AdminClient, AuthenticationToken, Client
from anabranch.errors import AuthenticationError, AuthorizationError
from anabranch.failpoints import FailpointReachedError
from anabranch.spark.service import close_sessions
from simulation.harness.pulsar.control import ControlServer
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.guarded import OPERATOR, TOKEN, allow, control_of
from tests.harness.security import SECRET_KEY, token_for
from tests.harness.spark_rows import Writing, check_rows, read_rows

pytestmark = [pytest.mark.real_time, pytest.mark.long, pytest.mark.timeout(300)]

JOB = "job"
RIGHTS = ("produce", "consume")
OPTION = "client.auth.token"


@pytest.fixture(scope="module")
def control(
    guarded: PulsarStandalone, zookeeper: ZookeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlServer]:
    scratch = tmp_path_factory.mktemp("control")
    key = scratch / "key"
    key.touch(mode=0o600)
    key.write_bytes(SECRET_KEY)
    settings = ["authentication=true", f"token_secret_key={key}"]
    settings += ["authorization=true", f"superuser_roles={OPERATOR}"]
    words = [word for setting in settings for word in ("--set", setting)]
    with control_of(guarded, f"{zookeeper.url}/guarded-sink", scratch, words) as server:
        yield server


@pytest.fixture
def admin(control: ControlServer, guarded: PulsarStandalone) -> Iterator[AdminClient]:
    """The operator's client; the job may write and read at both doors."""
    with AdminClient(control.http_url, authentication=AuthenticationToken(TOKEN)) as admin:
        allow(guarded, JOB, *RIGHTS)
        admin.grant("public/default", JOB, RIGHTS)
        yield admin
    close_sessions()


def test_rows_are_written_once_with_the_token_of_a_role_that_may_write_and_read(
    control: ControlServer, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("copy", 2)
    role = {OPTION: token_for(JOB)}
    writing = Writing(control, topic="copy", **role)
    staged = writing.stage(0, range(500))
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.publishing=raise")
    with pytest.raises(FailpointReachedError):
        writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    admin.split("copy", 0)
    writing.commit(writing.stage(0, range(500)))
    writing.commit(writing.stage(1, range(500, 800)))
    check_rows(read_rows(control, subscribe="copy", **role), 800)


def test_a_job_without_a_token_is_refused(control: ControlServer, admin: AdminClient) -> None:
    admin.create_topic("closed")
    with pytest.raises(AuthenticationError):
        Writing(control, topic="closed").stage(0, range(10))
    # Only the control process is asked for a layout, so it refuses strangers too.
    with Client(control.url) as client, pytest.raises(AuthenticationError):
        client.layout("closed")


def test_a_role_without_rights_is_refused(control: ControlServer, admin: AdminClient) -> None:
    admin.create_topic("foreign")
    with pytest.raises(AuthorizationError):
        Writing(control, topic="foreign", **{OPTION: token_for("stranger")}).stage(0, range(10))
