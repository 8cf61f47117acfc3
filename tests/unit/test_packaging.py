"""The package that users install: its files, its metadata, and the imports that each extra makes possible."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_EXTRAS = (
    "bcrypt",
    "cryptography",
    "cyclopts",
    "jwt",
    "prometheus_client",
    "pyspark",
    "rich",
    "starlette",
    "uvicorn",
    "uvloop",
)
"""Packages that `pip install anabranch` does not bring."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that the source gives, built in a copy because the build writes into its folder."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "docs").mkdir()
    for name in ("pyproject.toml", "LICENSE", "docs/package.md"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(made)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_has_the_files_that_run_and_none_for_developers(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in (
        "py.typed",
        "__main__.py",
        "config/default.toml",
        "config/pulsar_settings.txt",
        "protocol/pb/pulsar.proto",
        "spark/pipelines/log4j2.properties",
        "testing/plugin.py",
        "testing/local_broker.py",
    ):
        assert f"anabranch/{name}" in names
    unwanted = ("anabranch/bench/", "anabranch/testing/simulation/", "anabranch/testing/judges/", "tests/")
    assert [name for name in names if name.startswith(unwanted)] == []


def test_the_client_is_installed_alone_and_extras_bring_the_rest(metadata: Message) -> None:
    needed = metadata.get_all("Requires-Dist", [])
    always = {line.partition(">")[0] for line in needed if "extra ==" not in line}
    assert always == {"cramjam", "google-crc32c", "h11", "mmh3", "msgspec", "protobuf", "pyroaring"}
    assert {"cli", "server", "spark"} <= set(metadata.get_all("Provides-Extra", []))
    assert any(
        line.startswith("Programming Language :: Python") for line in metadata.get_all("Classifier", [])
    )


def test_the_description_has_no_link_that_only_works_in_the_repository(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "# Anabranch" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []


def run_without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that cannot import these packages."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({packages!r})); {code}"
    return subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)


def test_every_public_name_is_imported_without_the_extras() -> None:
    done = run_without(
        OF_EXTRAS, "import anabranch; [getattr(anabranch, name) for name in anabranch.__all__]"
    )
    assert done.returncode == 0, done.stderr


def test_a_command_without_its_extra_says_what_to_install() -> None:
    run = "from anabranch.cli.main import main; sys.exit(main({!r}))"
    done = run_without(("cyclopts",), run.format(["topic", "list"]))
    assert (done.returncode, "pip install 'anabranch[cli]'" in done.stderr) == (1, True)
    done = run_without(("jwt", "cryptography", "prometheus_client"), run.format(["serve", "--port", "0"]))
    assert (done.returncode, "pip install 'anabranch[server]'" in done.stderr) == (1, True), done.stderr
