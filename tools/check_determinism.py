"""Refuse clocks, randomness, threads and files outside the adapters that own them.

Whole clusters run in one process on a virtual clock from one seed; that holds only while everything impure
goes through a port. Run from the root of the repository; exits with 1 and names each place.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path("src/anabranch")

# Adapters and programs: the places where the outside world is allowed in.
ALLOWED = (
    "clock.py",
    "failpoints.py",
    "server/listening.py",
    "locks.py",
    "config/files.py",
    "descriptors.py",
    "server/attending.py",
    "server/node.py",
    "otel.py",
    "control/node.py",
    "control/stored_secret.py",
    "server/supervisor.py",
    "bench/",
    "cli/",
    "data/",
    "spark/",
    "testing/",
    "admin/client/http_client.py",
    "admin/http/server.py",
    "client/blocking/",
    "client/entropy.py",
    "credentials/fetching.py",
    "credentials/secret_sources.py",
    "ledger/disks/os_disk.py",
    "ledger/disks/os_files.py",
    "ledger/disks/work_thread.py",
    "metadata/sqlite/log_renewal.py",
    "metadata/sqlite/metadata_reserve.py",
    "metadata/sqlite/record_log.py",
    "metadata/sqlite/sqlite_store.py",
    "metadata/sqlite/sqlite_file.py",
    "metadata/sqlite/sqlite_thread.py",
    "metadata/zookeeper/zookeeper_client.py",
    "metadata/zookeeper/zookeeper_session.py",
    "security/audit_file.py",
    "security/outside.py",
    "security/secret_files.py",
    "security/tls.py",
    "security/peer_secret_file.py",
    "transport/accepting.py",
    "transport/followed_context.py",
    "transport/tls.py",
)

BANNED_MODULES = {
    "time",
    "uuid",
    "secrets",
    "socket",
    "threading",
    "concurrent",
    "multiprocessing",
    "subprocess",
}
BANNED_CALLS = {
    "os.urandom",
    "os.fsync",
    "os.fdatasync",
    "datetime.now",
    "datetime.utcnow",
    "datetime.datetime.now",
    "asyncio.to_thread",
    "asyncio.all_tasks",
    "open",
    "input",
}
BANNED_METHODS = {"run_in_executor"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def imports_type(node: ast.ImportFrom) -> bool:
    """Whether only the type UUID is imported, which is a value like others; its makers are not."""
    return node.module == "uuid" and [alias.name for alias in node.names] == ["UUID"]


def faults(tree: ast.AST) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [
                (node.lineno, f"import {alias.name}")
                for alias in node.names
                if alias.name.split(".")[0] in BANNED_MODULES
            ]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.split(".")[0] in BANNED_MODULES and not imports_type(node):
                found.append((node.lineno, f"from {node.module} import"))
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            is_random = name.startswith("random.") and name != "random.Random"
            if name in BANNED_CALLS or is_random or name.rsplit(".", 1)[-1] in BANNED_METHODS:
                found.append((node.lineno, f"{name}()"))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            over = node.iter
            if isinstance(over, ast.Set | ast.SetComp) or (
                isinstance(over, ast.Call) and dotted(over.func) in ("set", "frozenset")
            ):
                found.append((over.lineno, "iterates a set; sort it"))
    return found


def main() -> int:
    bad = 0
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE).as_posix()
        if relative.startswith(ALLOWED) or "/pb/" in path.as_posix():
            continue
        for line, what in faults(ast.parse(path.read_text())):
            print(f"{path}:{line}: {what} is not deterministic; go through a port")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
