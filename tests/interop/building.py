"""Builds the Java and Go sides of these tests from their sources, once; `build/` keeps what was made."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JAVA = HERE / "java"
GO = HERE / "go"
BUILT = HERE.parents[1] / "build"
JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx192m"]


def java_classpath() -> str:
    """Build the Java side, unless its build is newer than its sources; return its classpath."""
    out = BUILT / "java-v5"
    jars = out / "classpath.txt"
    with_sources = [JAVA / "pom.xml", *sorted(JAVA.rglob("*.java"))]
    command = ["mvn", "-B", "-q", "-f", str(JAVA / "pom.xml"), f"-Dout={out}"]
    command += ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    _build(command, ("java", "javac", "mvn"), with_sources, out, _all_there(jars))
    return f"{out / 'classes'}:{jars.read_text().strip()}"


def go_probe() -> Path:
    """Build the Go side, unless its build is newer than its sources; return the program."""
    out = BUILT / "go"
    command = ["go", "build", "-C", str(GO), "-o", str(out / "probe"), "."]
    _build(command, ("go",), sorted(GO.iterdir()), out, (out / "probe").exists())
    return out / "probe"


def _build(
    command: list[str], tools: tuple[str, ...], sources: list[Path], out: Path, complete: bool
) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.fail(f"`{tool}` is not installed; these tests need JDK 17 with Maven, and Go")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp = out / "sources.sha256"
    if complete and stamp.exists() and stamp.read_text() == digest:
        return
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.fail(f"{command[0]} could not build:\n{made.stdout[-4000:]}{made.stderr[-4000:]}")
    out.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)


def _all_there(jars: Path) -> bool:
    return jars.exists() and all(Path(jar).exists() for jar in jars.read_text().strip().split(":"))
