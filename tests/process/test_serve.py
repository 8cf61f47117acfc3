"""`anabranch serve` as a real process: ready line, ports, clean stop, one process per data directory."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness.process import BrokerProcess

MakeBroker = Callable[..., BrokerProcess]


def serve(*arguments: str, timeout_s: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run `anabranch serve` that is expected to end by itself."""
    command = [sys.executable, "-m", "anabranch.cli.main", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"{broker.http_url}{path}", timeout=10) as response:
        return str(response.read().decode())


def test_the_first_line_says_where_it_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch.cli.main", "serve", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--port", "0", "--http-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"ready pulsar://127\.0\.0\.1:(\d+) http://127\.0\.0\.1:(\d+)\n", line)
        assert match is not None, line
        for port in match.groups():
            socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(make_broker: MakeBroker, how: signal.Signals) -> None:
    broker = make_broker().start()
    os.kill(broker.pid, how)
    assert broker.wait(20) == 0
    assert "Traceback" not in broker.log_text


def test_it_starts_again_on_the_same_data_and_ports(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    ports = (broker.port, broker.http_port)
    assert broker.stop() == 0
    broker.start()
    assert (broker.port, broker.http_port) == ports
    assert get(broker, "/admin/v2/brokers/health") == "ok"


def test_a_second_process_on_the_same_data_is_refused(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker().start()
    second = serve("--data", str(broker.data), "--port", "0", "--http-port", "0")
    assert second.returncode == 1
    assert f"in use by process {broker.pid}" in second.stderr
    assert "choose another directory" in second.stderr
    assert "Traceback" not in second.stderr
    assert get(broker, "/status.html") == "OK"


def test_a_port_that_is_taken_is_named(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker().start()
    other = str(tmp_path / "other")
    for option, port in (("--port", broker.port), ("--http-port", broker.http_port)):
        ports = {"--port": "0", "--http-port": "0", option: str(port)}
        refused = serve("--data", other, *[word for pair in ports.items() for word in pair])
        assert refused.returncode == 1
        assert f"port {port} on 127.0.0.1 is in use" in refused.stderr
        assert option in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_wrong_setting_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    refused = serve("--data", str(tmp_path), "--set", "deduplicaton=true")
    assert refused.returncode == 1
    assert "did you mean deduplication?" in refused.stderr


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data in ("file", "file/below"):
        refused = serve("--data", str(tmp_path / data), "--port", "0", "--http-port", "0")
        assert refused.returncode == 1
        assert f"{tmp_path / 'file'} is not a directory" in refused.stderr


def test_it_starts_fast_and_stays_small(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    get(broker, "/metrics")
    time.sleep(0.5)
    # The goals are 0.5 s and 80 MB on a quiet machine; here only a gross mistake counts.
    assert broker.started_in_s < 5
    assert broker.memory_bytes() < 120 * 2**20


def refusal(broker: BrokerProcess, method: str, path: str) -> tuple[int, str]:
    """Status and reason of a call that must be refused."""
    request = urllib.request.Request(f"{broker.http_url}{path}", method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as error:
        return error.code, str(json.loads(error.read())["reason"])


def test_unknown_paths_and_methods_are_answered_in_json(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    assert refusal(broker, "GET", "/admin/v2/nothing-here") == (404, "there is no /admin/v2/nothing-here")
    assert refusal(broker, "PATCH", "/admin/v2/clusters") == (405, "PATCH is not allowed here")
