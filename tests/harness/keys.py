"""Key pairs for end-to-end encryption; making one takes long, so all tests share a few."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from anabranch.security.methods.issuing import KeyPair, make_key_pair


@cache
def key_pair(name: str) -> KeyPair:
    """The key pair of a name, in PEM form; the same for all tests of a process."""
    return make_key_pair("RS256", pem=True)


class TestKeys:
    """A key reader that answers on the loop, and can be told to fail."""

    __test__ = False

    def __init__(self, *names: str, private: bool = False) -> None:
        self.names = list(names)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._private = private

    async def __call__(self, name: str, metadata: Mapping[str, str]) -> bytes | None:
        self.asked.append((name, dict(metadata)))
        if name not in self.names:
            return None
        pair = key_pair(name)
        return pair.private if self._private else pair.public


def public_keys(*names: str) -> TestKeys:
    return TestKeys(*names)


def private_keys(*names: str) -> TestKeys:
    return TestKeys(*names, private=True)
