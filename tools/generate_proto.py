"""Turn `protocol/pb/pulsar.proto` into `pulsar_pb2.py` and its `.pyi`.

With `--check` nothing is written: the exit status is 1 when the committed files are not what the proto file
gives, so that a check run can hold them fresh.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src"
PROTO = "anabranch/protocol/pb/pulsar.proto"
OUTPUTS = ("anabranch/protocol/pb/pulsar_pb2.py", "anabranch/protocol/pb/pulsar_pb2.pyi")


def generate(target: Path) -> None:
    """Write the generated files under `target`, in the package tree of `SOURCE_ROOT`."""
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--proto_path={SOURCE_ROOT}",
            f"--python_out={target}",
            f"--mypy_out=quiet:{target}",
            str(SOURCE_ROOT / PROTO),
        ],
        check=True,
    )
    made = target / OUTPUTS[0]
    made.write_text(without_version_check(made.read_text()))


def without_version_check(text: str) -> str:
    """Return generated code that runs with older versions of protobuf than the one that generated it.

    The code is a serialized descriptor and two calls that have not changed since protobuf 4. The lowest
    version of `pyproject.toml` is the first one in which descriptors of fields have `is_repeated`.
    """
    text = text.replace("from google.protobuf import runtime_version as _runtime_version\n", "")
    return re.sub(r"_runtime_version\.ValidateProtobufRuntimeVersion\(.*?\n\)\n", "", text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the committed output is stale")
    check: bool = parser.parse_args().check
    if not check:
        generate(SOURCE_ROOT)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = [name for name in OUTPUTS if _differs(Path(scratch) / name, SOURCE_ROOT / name)]
    for name in stale:
        print(f"src/{name} is stale; run: python tools/generate_proto.py", file=sys.stderr)
    return 1 if stale else 0


def _differs(fresh: Path, committed: Path) -> bool:
    return not committed.exists() or fresh.read_bytes() != committed.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
