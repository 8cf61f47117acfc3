"""Make the blocking admin client of the asynchronous one: the same methods without `async` and `await`.

`--check` only says whether the generated modules are those that would be made.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/anabranch/admin/client/asynchronous"
TARGET = ROOT / "src/anabranch/admin/client/blocking"
RULES = (
    (r"\basync (def|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"client\.async_http\b", "client.http_client"),
    (r"client\.asynchronous\b", "client.blocking"),
    (r"\bAsync(?=[A-Z])", ""),
)
NOTE = "# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one."


def blocking(text: str) -> str:
    """The blocking form of an asynchronous module."""
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return f"{NOTE}\n\n{text}"


def formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [str(ruff), *arguments, "--stdin-filename", str(TARGET / "module.py"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    stale = []
    modules = [path for path in sorted(SOURCE.glob("*.py")) if path.name != "__init__.py"]
    for path in modules:
        made, target = formatted(blocking(path.read_text())), TARGET / path.name
        if target.exists() and target.read_text() == made:
            continue
        stale.append(str(target.relative_to(ROOT)))
        if "--check" not in sys.argv:
            target.write_text(made)
    if stale and "--check" in sys.argv:
        print(f"make these again with tools/generate_admin.py: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
