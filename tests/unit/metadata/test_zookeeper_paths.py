from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.metadata.zookeeper.zookeeper_paths import Entries, Tree, ZookeeperAddress, is_behind

TREE = Tree("/pulsar/values")


@pytest.mark.parametrize(
    ("url", "hosts", "path", "tls"),
    [
        ("zk://a:1", ("a:1",), "", False),
        ("zk://a:1/", ("a:1",), "", False),
        ("zk://a,b:2/x//y/", ("a:2181", "b:2"), "/x/y", False),
        ("zk+tls://[::1]:3,[::2]/x", ("[::1]:3", "[::2]:2181"), "/x", True),
    ],
)
def test_an_address_names_hosts_and_a_path(url: str, hosts: tuple[str, ...], path: str, tls: bool) -> None:
    assert ZookeeperAddress.parse(url) == (hosts, path, tls)


@pytest.mark.parametrize(
    "url",
    ["", "a:1", "http://a:1", "zk://", "zk://a:0", "zk://a:x", "zk://a,/x", "zk://a/../x", "zk://a?b=c"],
)
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigurationError):
        ZookeeperAddress.parse(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        ZookeeperAddress.parse("zk://user:secret@a:1/x")
    assert "secret" not in str(refused.value)


def test_an_address_reads_back_from_its_text() -> None:
    for url in ("zk://a:1,b:2/x/y", "zk+tls://a:1"):
        assert str(ZookeeperAddress.parse(url)) == url


def test_a_value_is_a_leaf_beside_the_directory_of_its_descendants() -> None:
    assert TREE.leaf("/t/a") == "/pulsar/values/d:t/v:a"
    assert TREE.leaf("/t/a/b") == "/pulsar/values/d:t/d:a/v:b"
    assert TREE.directory("/t/a") == "/pulsar/values/d:t/d:a"
    assert TREE.directory("") == "/pulsar/values"


@pytest.mark.parametrize(
    "znode",
    [
        "/pulsar/values",
        "/pulsar/values/d:t",
        "/pulsar/values/d:t/d:a",
        "/pulsar/sequences/v:a",
        "/pulsar/valuesv:a",
    ],
)
def test_a_znode_without_a_value_belongs_to_no_key(znode: str) -> None:
    assert TREE.key(znode) is None


def test_directories_sort_like_the_keys_in_them() -> None:
    found = Entries.of(["d:x", "v:x-y", "v:x", "v:x0", "d:x-y"])
    assert found.in_order() == [("x", False), ("x-y", False), ("x-y", True), ("x", True), ("x0", False)]


def test_a_directory_is_behind_when_all_its_keys_are() -> None:
    assert not is_behind("", "/a/")
    assert not is_behind("/a", "/a/")
    assert not is_behind("/a/x", "/a/")
    assert is_behind("/a0", "/a/")
    assert is_behind("/b", "/a/")
