from __future__ import annotations

import pytest

from anabranch.errors import LayoutError
from anabranch.model.hashing import (
    MAX_BUCKETS,
    bucket_hash,
    bucket_index,
    bucket_ranges,
    check_bucket_splits,
    equal_bucket_splits,
    key_hash,
    segment_hash,
    sticky_hash,
)
from anabranch.model.ranges import FULL, HashRange

# Known answers: key, raw hash, bucket of four, classic partition of four. They are facts about Pulsar's hash,
# so a change that breaks one re-routes every key of every topic.
VECTORS = [
    ("", 0x00000000, 0, 0),
    ("a", 0x3C2569B2, 1, 2),
    ("k1", 0xFDC6602A, 1, 2),
    ("k2", 0xD8367FC8, 1, 0),
    ("key1", 0x9B970125, 0, 1),
    ("key2", 0x737139B4, 0, 0),
    ("key01", 0x825DBA24, 2, 0),
    ("key02", 0x2CCEF98B, 3, 3),
    ("key-0", 0xE337F8BF, 3, 3),
    ("key-1", 0x98B115A0, 0, 0),
    ("key-42", 0x04DF6717, 1, 3),
    ("order-42", 0x4B11A18E, 2, 2),
    ("customer-99", 0xD8FFEE14, 3, 0),
    ("stable-key", 0x7396CFA0, 3, 0),
    ("deterministic-key", 0xA9FF96E7, 2, 3),
    ("user:12345", 0xEDCDB22A, 2, 2),
    ("héllo", 0xBC9FA068, 2, 0),
    ("日本語", 0xA5A47297, 1, 3),
    ("0123456789abcdef", 0x36C7E0DF, 3, 3),
    ("00000000-0000-0000-0000-000000000000", 0x16A8EDD4, 3, 0),
    ("alpha", 0xA9C0133D, 0, 1),
    ("bravo", 0xF96964C4, 1, 0),
    ("k-0", 0x5A771F53, 0, 3),
    ("k-1", 0xBD7718CB, 0, 3),
]


@pytest.mark.parametrize(("key", "raw", "of_four", "partition"), VECTORS)
def test_known_keys_have_known_hashes(key: str, raw: int, of_four: int, partition: int) -> None:
    assert key_hash(key) == raw
    assert key_hash(key.encode()) == raw
    assert segment_hash(raw) == raw >> 16
    assert bucket_hash(raw) == raw & 0xFFFF
    assert bucket_index(equal_bucket_splits(4), bucket_hash(raw)) == of_four
    assert (raw & 0x7FFFFFFF) % 4 == partition
    assert sticky_hash(key.encode()) == ((raw & 0x7FFFFFFF) % 65536 or 1)


def test_text_is_hashed_as_utf_8_and_other_text_is_refused() -> None:
    assert key_hash("ä€😀") == key_hash("ä€😀".encode())
    with pytest.raises(UnicodeEncodeError):
        key_hash("\ud800")


def test_sticky_hash_never_says_not_set() -> None:
    assert sticky_hash(b"") == 1


def test_equal_buckets_have_the_published_boundaries() -> None:
    assert equal_bucket_splits(1) == ()
    assert equal_bucket_splits(3) == (0x5555, 0xAAAA)
    assert equal_bucket_splits(4) == (0x4000, 0x8000, 0xC000)


@pytest.mark.parametrize("count", [0, -1, MAX_BUCKETS + 1])
def test_the_number_of_buckets_is_bounded(count: int) -> None:
    with pytest.raises(LayoutError):
        equal_bucket_splits(count)


def test_a_boundary_belongs_to_the_bucket_it_opens() -> None:
    splits = (0x4000, 0x8000)
    assert [bucket_index(splits, slot) for slot in (0, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0xFFFF)] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_bucket_ranges_cover_the_ring() -> None:
    assert bucket_ranges(()) == (FULL,)
    assert bucket_ranges((0x4000,)) == (HashRange(0, 0x3FFF), HashRange(0x4000, 0xFFFF))


@pytest.mark.parametrize("splits", [(1,), (0,), (5, 5), (6, 5), (65536,), tuple(range(2, MAX_BUCKETS + 2))])
def test_unusable_boundaries_are_explained(splits: tuple[int, ...]) -> None:
    assert check_bucket_splits(splits)


@pytest.mark.parametrize("splits", [(), (2,), (2, 3, 65535), equal_bucket_splits(MAX_BUCKETS)])
def test_usable_boundaries_pass(splits: tuple[int, ...]) -> None:
    assert check_bucket_splits(splits) is None
