from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.zookeeper.zookeeper_paths import Entries, Tree, escape, is_behind, unescape

ALLOWED_AFTER_ESCAPING = "/\x00"
parts = st.text(
    st.characters(exclude_characters=ALLOWED_AFTER_ESCAPING, exclude_categories=["Cs"]), min_size=1
)
keys = st.lists(parts, min_size=1, max_size=4).map(lambda names: "".join(f"/{name}" for name in names))
few = st.lists(st.sampled_from(["a", "a-", "a0", "b", "~", "é"]), min_size=1, max_size=3)
few_keys = few.map(lambda names: "".join(f"/{name}" for name in names))


@given(parts)
def test_an_escaped_name_is_allowed_and_reads_back(name: str) -> None:
    escaped = escape(name)
    assert unescape(escaped) == name
    assert all(32 <= ord(c) < 127 or 160 <= ord(c) < 0xD800 or 0xF8FF < ord(c) < 0xFFF0 for c in escaped)


@given(keys)
def test_the_znode_of_a_key_names_the_key(key: str) -> None:
    tree = Tree("/root/values")
    assert tree.key(tree.leaf(key)) == key


@given(st.sets(few_keys, max_size=12), few_keys)
def test_a_walk_through_directories_gives_all_keys_behind_another_in_order(
    stored: set[str], after: str
) -> None:
    children: dict[str, list[str]] = {}
    for key in stored:
        names = key.split("/")[1:]
        for depth, name in enumerate(names, 1):
            above = "".join(f"/{part}" for part in names[: depth - 1])
            kind = "v:" if depth == len(names) else "d:"
            children.setdefault(above, []).append(kind + escape(name))

    def walk(prefix: str) -> list[str]:
        found: list[str] = []
        for name, is_directory in Entries.of(children.get(prefix, [])).in_order():
            key = f"{prefix}/{name}"
            if not is_directory:
                found += [key] if key > after else []
            elif not is_behind(after, key + "/"):
                found += walk(key)
        return found

    assert walk("") == sorted(key for key in stored if key > after)
