"""The znode of a key, and the address of a ZooKeeper; pure.

The value of a key `/t/a` is the znode `values/d:t/v:a`, and its descendants are below `values/d:t/d:a`. A
value is always a leaf, because an ephemeral znode may have no children. Sequences have a tree of their own.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from anabranch.errors import InvalidConfigurationError

PLAIN, TLS = "zk", "zk+tls"
PORT = 2181
FORM = "zk://host:port[,host:port...]/path"

VALUES, SEQUENCES = "values", "sequences"
VALUE, DIRECTORY = "v:", "d:"

# ZooKeeper refuses these characters in names; `~` begins an escaped one.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff~]")
_ESCAPED = re.compile("~([0-9a-f]+)~")


class ZookeeperAddress(NamedTuple):
    """The servers of an ensemble, and the path below which Anabranch keeps everything."""

    hosts: tuple[str, ...]
    path: str
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `zk://host:port[,host:port...]/path`, or `zk+tls://` for an encrypted connection."""
        parts = urlsplit(url)
        if parts.scheme not in (PLAIN, TLS) or parts.query or parts.fragment:
            raise InvalidConfigurationError(f"{url!r} is not the address of a ZooKeeper: write {FORM}")
        if "@" in parts.netloc:
            # The address is logged, so the text of this error does not repeat it.
            raise InvalidConfigurationError("the address of a ZooKeeper must not contain a password")
        hosts = tuple(_host(url, host) for host in parts.netloc.split(","))
        names = [name for name in parts.path.split("/") if name]
        if any(name in (".", "..") or _REFUSED.search(name) for name in names):
            raise InvalidConfigurationError(f"{url!r}: ZooKeeper does not allow this path")
        return cls(hosts, "".join(f"/{name}" for name in names), parts.scheme == TLS)

    def __str__(self) -> str:
        return f"{TLS if self.tls else PLAIN}://{','.join(self.hosts)}{self.path}"


def _host(url: str, host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(PORT)
    if not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidConfigurationError(f"{url!r}: {host!r} is not host:port; write {FORM}")
    return f"{name}:{port}"


class Tree(NamedTuple):
    """Znodes of the keys below one root."""

    root: str

    def directory(self, prefix: str) -> str:
        """The znode below which all keys below `prefix` are; `prefix` is "" for all keys."""
        return self.root + "".join(f"/{DIRECTORY}{escape(part)}" for part in prefix.split("/")[1:])

    def leaf(self, key: str) -> str:
        """The znode with the value of `key`."""
        above, _, name = key.rpartition("/")
        return f"{self.directory(above)}/{VALUE}{escape(name)}"

    def key(self, znode: str) -> str | None:
        """The key whose value is in this znode; None for a directory or another part of ZooKeeper."""
        *above, last = znode.removeprefix(self.root + "/").split("/")
        if not znode.startswith(self.root + "/") or not last.startswith(VALUE):
            return None
        names = [unescape(part.removeprefix(DIRECTORY)) for part in above]
        return "".join(f"/{name}" for name in [*names, unescape(last.removeprefix(VALUE))])


class Entries(NamedTuple):
    """The children of a directory: names with a value, and names that may have descendants."""

    values: set[str]
    directories: set[str]

    @classmethod
    def of(cls, children: list[str]) -> Self:
        values = {unescape(name.removeprefix(VALUE)) for name in children if name.startswith(VALUE)}
        below = {unescape(name.removeprefix(DIRECTORY)) for name in children if name.startswith(DIRECTORY)}
        return cls(values, below)

    def in_order(self) -> list[tuple[str, bool]]:
        """Names and whether they are directories, in the order of the keys that they stand for.

        `x-y` sorts before `x/deep`, so a directory sorts like its name with a slash.
        """
        names = [(name, name, False) for name in self.values]
        names += [(name + "/", name, True) for name in self.directories]
        return [(name, is_directory) for _, name, is_directory in sorted(names)]


def is_behind(after: str, below: str) -> bool:
    """Whether every key that starts with `below` sorts at or before `after`."""
    return after >= below and not after.startswith(below)


def escape(name: str) -> str:
    """A name that ZooKeeper allows; `unescape` undoes it."""
    return _REFUSED.sub(lambda found: f"~{ord(found[0]):x}~", name)


def unescape(name: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
