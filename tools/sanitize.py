"""Tests the compiled functions with the sanitizers of gcc, which report reads and writes outside of memory.

The functions are built into a folder of their own and loaded in place of the installed ones.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build/sanitized"
TESTS = (
    "tests/properties/test_compiled_sending.py",
    "tests/properties/test_compiled_reading.py",
    "tests/properties/test_compiled_columns.py",
    "tests/properties/test_batcher.py",
    "tests/unit/client/produce/test_enqueuing.py",
    "tests/unit/ledger/test_quick_appends.py",
)
SANITIZERS = ("asan", "ubsan")
FLAGS = (
    *("-g", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover"),
)


def modules() -> dict[str, list[str]]:
    """The names of the compiled modules, and their sources."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["ext-modules"]
    return {module["name"].rpartition(".")[2]: module["sources"] for module in listed}


def build(folder: Path) -> None:
    """Build all modules from sources that lie in `folder` as they do in the project."""
    BUILT.mkdir(parents=True, exist_ok=True)
    include = "-I" + sysconfig.get_paths()["include"]
    for name, sources in modules().items():
        paths = [str(folder / source) for source in sources]
        subprocess.run(["gcc", *FLAGS, include, *paths, "-o", str(BUILT / f"{name}.abi3.so")], check=True)


def run_again(folder: Path) -> int:
    """Run this script again in a Python that has the sanitizers, which must be loaded before all else."""
    if shutil.which("gcc") is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        print("the compiled functions cannot be built here: gcc or the headers of Python are missing")
        return 0
    named = [["gcc", f"-print-file-name=lib{name}.so"] for name in SANITIZERS]
    loaded = [subprocess.run(command, check=True, capture_output=True, text=True) for command in named]
    preload = " ".join(done.stdout.strip() for done in loaded)
    # Python keeps what it allocates at its start, and its own allocator hides the ends of objects.
    options = {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    command = [sys.executable, __file__, "tests"]
    build(folder)
    return subprocess.run(command, env={**os.environ, **options}, cwd=ROOT, check=False).returncode


def run_tests() -> int:
    import pytest

    for name in modules():
        spec = importlib.util.spec_from_file_location(f"anabranch.{name}", BUILT / f"{name}.abi3.so")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[f"anabranch.{name}"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", *TESTS])


if __name__ == "__main__":
    sys.exit(run_tests() if sys.argv[1:] == ["tests"] else run_again(Path(*sys.argv[1:2] or [str(ROOT)])))
