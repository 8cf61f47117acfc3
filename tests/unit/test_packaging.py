"""The package that users install: its files, its metadata, and the imports that each extra makes possible."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
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
CAN_COMPILE = shutil.which("gcc") is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that the source gives, built in a copy because the build writes into its folder."""
    return built_wheel(tmp_path_factory.mktemp("package"))


def built_wheel(folder: Path, **environment: str) -> zipfile.ZipFile:
    (folder / "docs").mkdir()
    for name in ("pyproject.toml", "LICENSE", "docs/package.md"):
        shutil.copy(ROOT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    env = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True, env=env)
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
    ):
        assert f"anabranch/{name}" in names
    unwanted = ("benchmarks/", "simulation/", "tests/", "tools/")
    assert [name for name in names if name.startswith(unwanted)] == []
    testing = {
        name.removeprefix("anabranch/testing/") for name in names if name.startswith("anabranch/testing/")
    }
    assert testing == {
        "__init__.py",
        "local_broker.py",
        "pytest_broker.py",
        "seeded_secrets.py",
        "slow_keys.py",
    }


@pytest.mark.skipif(
    shutil.which("gcc") is None, reason="without a compiler a wheel has no compiled functions"
)
def test_one_wheel_with_compiled_functions_serves_every_python(wheel: zipfile.ZipFile) -> None:
    assert {"anabranch/_sending.abi3.so", "anabranch/_reading.abi3.so"} <= set(wheel.namelist())
    assert re.search(r"-cp311-abi3-\w+\.whl$", str(wheel.filename))


def test_without_a_compiler_the_package_is_built_all_the_same(tmp_path: Path) -> None:
    names = built_wheel(tmp_path, CC="a-compiler-that-is-missing").namelist()
    assert "anabranch/speedups.py" in names
    assert [name for name in names if name.endswith(".so")] == []


def test_the_wheel_has_every_module_of_the_source(wheel: zipfile.ZipFile) -> None:
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/anabranch").rglob("*.py")}
    assert source - set(wheel.namelist()) == set()


def test_the_broker_for_tests_of_applications_runs_from_the_wheel(wheel: zipfile.ZipFile) -> None:
    code = """
import anabranch
from anabranch.testing import pytest_broker
from anabranch.testing.local_broker import LocalBroker
with LocalBroker() as broker, anabranch.Client(broker.url) as client:
    client.create_producer("orders").send(b"tea")
print(anabranch.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {wheel.filename!r}){code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel.filename))


def test_links_of_the_project_are_absolute_and_agree(metadata: Message) -> None:
    links = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changes"} <= set(links)
    home = links["Homepage"]
    used = re.findall(r"https://github\.com/anabranch[^)\s]*", str(metadata.get_payload()))
    assert used
    assert all(link.startswith(home) for link in (*used, *links.values()))
    for link in (*used, *links.values()):
        path = re.sub(r"^/(tree|blob)/main/", "", link.removeprefix(home))
        assert path in ("", "/issues") or (ROOT / path).exists(), link


def test_the_client_is_installed_alone_and_extras_bring_the_rest(metadata: Message) -> None:
    needed = metadata.get_all("Requires-Dist", [])
    always = {line.partition(">")[0] for line in needed if "extra ==" not in line}
    assert always == {"cramjam", "google-crc32c", "h11", "mmh3", "msgspec", "protobuf", "pyroaring"}
    assert {"cli", "otel", "server", "spark"} <= set(metadata.get_all("Provides-Extra", []))
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
