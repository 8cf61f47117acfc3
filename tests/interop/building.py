"""Builds the Java and Go sides of these tests from their sources, once; `build/` keeps what was made."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JAVA = {"java-v5": HERE / "java", "java-classic": HERE / "java_classic"}
"""The classes on Pulsar 5's clients, and those on the classic client of Pulsar 4."""
GO = HERE / "go"
BUILT = HERE.parents[1] / "build"
JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx192m"]


def java_classpath(project: str = "java-v5") -> str:
    """Build a Java side, unless its build is newer than its sources; return its classpath."""
    source, out = JAVA[project], BUILT / project
    jars = out / "classpath.txt"
    with_sources = [source / "pom.xml", *sorted(source.rglob("*.java"))]
    command = ["mvn", "-B", "-q", "-f", str(source / "pom.xml"), f"-Dout={out}"]
    command += ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    _build(command, ("java", "javac", "mvn"), with_sources, out, _all_there(jars))
    return f"{out / 'classes'}:{jars.read_text().strip()}"


def go_program(name: str) -> Path:
    """Build the Go side, unless its build is newer than its sources; return one of its programs."""
    out = BUILT / "go"
    command = ["go", "build", "-C", str(GO), "-o", f"{out}/", "./..."]
    sources = sorted(path for path in GO.rglob("*") if path.is_file())
    _build(command, ("go",), sources, out, (out / name).exists())
    return out / name


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
