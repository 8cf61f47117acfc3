"""README: the broker starts with one command, and the command line does what "A first message" says."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.promises.installed import ROOT, InstalledBroker, InstalledPackage

MakeBroker = Callable[..., InstalledBroker]

README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    """The README's blocks of code, without their fences."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_one_command_and_a_data_directory_are_enough(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    assert broker.ready == f"ready {broker.url} {broker.http_url}\n"
    assert (broker.folder / "anabranch-data").is_dir()
    assert {path.name for path in broker.folder.iterdir()} == {"anabranch-data", "broker.log"}
    assert broker.kill(signal.SIGTERM) == 0


def test_the_default_addresses_are_those_of_the_readme(package: InstalledPackage) -> None:
    def printed(*words: str) -> str:
        done = subprocess.run([package.command, *words], capture_output=True, text=True, check=True)
        return done.stdout

    (settings,) = re.findall(r"ready pulsar://127\.0\.0\.1:(\d+) http://127\.0\.0\.1:(\d+)", README)
    config = printed("config")
    assert f"\nport = {settings[0]}\n" in config
    assert f"\nhttp_port = {settings[1]}\n" in config
    assert '\nhost = "127.0.0.1"\n' in config
    assert "./anabranch-data" in printed("serve", "--help")


def test_the_commands_of_the_first_message_run_as_written(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    (text,) = [block for block in blocks("sh") if "anabranch produce" in block]
    done = subprocess.run(
        ["sh", "-e", "-c", text], env=broker.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "alice\tone tea" in done.stdout
    assert "epoch 1" in done.stdout
    assert "1 · 0000-7fff" in done.stdout


def test_consume_only_looks_as_often_as_one_likes(broker: InstalledBroker) -> None:
    broker.tell("produce", "looked-at", "--key", "alice", "--value", "tea {n}", "--count", "3")
    look = ("consume", "looked-at", "--from", "earliest", "--count", "3")
    assert broker.tell(*look) == broker.tell(*look) == "alice\ttea 0\nalice\ttea 1\nalice\ttea 2\n"
    assert json.loads(broker.tell("subscription", "list", "looked-at", "--json")) == {}


def test_a_subscription_reads_on_where_it_stopped(broker: InstalledBroker) -> None:
    broker.tell("produce", "read-on", "--key", "alice", "--value", "tea {n}", "--count", "3")
    read = ("consume", "read-on", "--subscription", "mine", "--from", "earliest", "--count")
    assert broker.tell(*read, "2") == "alice\ttea 0\nalice\ttea 1\n"
    assert broker.tell(*read, "1") == "alice\ttea 2\n"


def test_outputs_keep_binary_values_undamaged(broker: InstalledBroker) -> None:
    value = bytes(range(256))
    broker.run(f"""
        with Client(url) as client:
            client.create_producer("binary").send(bytes.fromhex({value.hex()!r}), key="k")
        """)
    look = ["consume", "binary", "--from", "earliest", "--count", "1", "-o"]
    raw = subprocess.run(
        [broker.package.command, *look, "raw"], env=broker.environment(), capture_output=True, check=True
    )
    assert raw.stdout == value
    assert bytes.fromhex(broker.tell(*look, "hex").split()[-1]) == value
    assert base64.b64decode(broker.tell(*look, "base64").split()[-1]) == value
    found = json.loads(broker.tell(*look, "json"))
    assert found["key"] == "k"
    assert base64.b64decode(found["value"]["base64"]) == value


def test_json_is_for_scripts(broker: InstalledBroker) -> None:
    assert json.loads(broker.tell("produce", "scripted", "--value", "tea", "--json"))
    assert json.loads(broker.tell("topic", "split", "scripted", "0", "--json"))
    assert json.loads(broker.tell("topic", "show", "scripted", "--json"))
    assert json.loads(broker.tell("topic", "why", "scripted", "--json"))["epoch"] == 1
    assert json.loads(broker.tell("brokers", "--json"))[0]["webServiceUrl"] == broker.http_url
    line = broker.tell("consume", "scripted", "--from", "earliest", "--count", "1", "--json")
    assert json.loads(line)["value"] == "tea"


def test_completion_can_be_installed(package: InstalledPackage, tmp_path: Path) -> None:
    done = subprocess.run(
        [package.command, "completion", "bash", "--install"],
        env=package.environment({"HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("anabranch" in path.read_text() for path in installed)


def test_deleting_asks_first_or_takes_yes(broker: InstalledBroker) -> None:
    broker.tell("topic", "create", "doomed")
    refused = broker.ask("topic", "delete", "doomed")
    assert refused.returncode != 0
    assert "--yes" in refused.stderr
    broker.tell("topic", "show", "doomed")
    broker.tell("topic", "delete", "doomed", "--yes")
    assert broker.ask("topic", "show", "doomed").returncode != 0


def test_other_machines_need_authentication_or_a_trusted_network(make_broker: MakeBroker) -> None:
    closed = make_broker("--host", "0.0.0.0")
    words = [str(closed.package.command), "serve", "--port", "0", "--http-port", "0", "--host", "0.0.0.0"]
    done = subprocess.run(
        words, cwd=closed.folder, env=closed.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "--allow-unauthenticated" in done.stderr
    trusting = make_broker("--host", "0.0.0.0", "--allow-unauthenticated").start()
    trusting.tell("produce", "orders", "--value", "tea")


def test_the_client_needs_none_of_the_extras(package: InstalledPackage) -> None:
    """`pip install .` alone brings the client, so its modules import nothing that an extra brings."""
    program = """\
import sys
for name in ("cyclopts", "rich", "starlette", "uvicorn", "bcrypt", "cryptography", "fastavro", "jwt"):
    sys.modules[name] = None
from anabranch import *
Client("pulsar://127.0.0.1:1").close()
"""
    done = subprocess.run(
        [package.python, "-I", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
