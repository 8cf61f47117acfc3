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
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/anabranch/_speedups.c"
BUILT = ROOT / "build/sanitized/_speedups.abi3.so"
TESTS = ("tests/properties/test_speedups.py", "tests/properties/test_batcher.py")
SANITIZERS = ("asan", "ubsan")


def build(source: Path) -> None:
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    flags = [
        "-g",
        "-O1",
        "-Wall",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover",
        "-shared",
    ]
    include = "-I" + sysconfig.get_paths()["include"]
    subprocess.run(["gcc", *flags, "-fPIC", include, str(source), "-o", str(BUILT)], check=True)


def run_again(source: Path) -> int:
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
    build(source)
    return subprocess.run(command, env={**os.environ, **options}, cwd=ROOT, check=False).returncode


def run_tests() -> int:
    import pytest

    spec = importlib.util.spec_from_file_location("anabranch._speedups", BUILT)
    assert spec is not None
    sys.modules["anabranch._speedups"] = importlib.util.module_from_spec(spec)
    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", *TESTS])


if __name__ == "__main__":
    sys.exit(run_tests() if sys.argv[1:] == ["tests"] else run_again(Path(*sys.argv[1:2] or [str(SOURCE)])))
