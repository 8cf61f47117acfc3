from __future__ import annotations

import pytest

from anabranch.errors import InvalidNameError
from anabranch.model.names import (
    STORAGE_NAME_MAX,
    Domain,
    SegmentDescriptor,
    TopicName,
    decode_part,
    encode_part,
    parse_namespace,
    validate_subscription,
)
from anabranch.model.ranges import FULL, HashRange


@pytest.mark.parametrize(
    "text",
    [
        "topic://t/n/orders",
        "topic://t/n/a/b/c",
        "persistent://t/n/orders",
        "non-persistent://t/n/orders",
        "segment://t/n/orders/0000-7fff-1",
        "segment://t/n/a/b/8000-ffff-12345",
        "topic://a-b_c.d=e:f/n/Ünï cödé",
    ],
)
def test_a_whole_name_prints_as_it_was_read(text: str) -> None:
    assert str(TopicName.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "domain", "whole"),
    [
        ("orders", "persistent", "persistent://public/default/orders"),
        ("orders", "topic", "topic://public/default/orders"),
        ("t/n/orders", "topic", "topic://t/n/orders"),
        ("t/n/orders", "non-persistent", "non-persistent://t/n/orders"),
    ],
)
def test_short_names_are_completed(text: str, domain: Domain, whole: str) -> None:
    assert str(TopicName.parse(text, default_domain=domain)) == whole


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("persistent://tenant/cluster/ns/topic", "old form"),
        ("non-persistent://tenant/cluster/ns/topic", "old form"),
        ("a/b", "tenant/namespace/name"),
        ("a/b/c/d", "tenant/namespace/name"),
        ("", "empty"),
        ("topic://t/n", "incomplete"),
        ("topic://t", "incomplete"),
        ("topic://t/n/", "empty"),
        ("topic:///n/x", "tenant"),
        ("topic://t//x", "namespace"),
        ("topic://t!/n/x", "tenant"),
        ("topic://../n/x", "tenant"),
        ("topic://t/./x", "namespace"),
        ("topic://t/n/a//b", "empty"),
        ("topic://t/n/a/../b", "dots"),
        ("topic://t/n/..", "dots"),
        ("topic://t/n/a\x00b", "control"),
        ("topic://t/n/ a", "blank"),
        ("topic://t/n/\ud800", "control"),
        ("http://t/n/x", "scheme"),
        ("segment://t/n/x", "incomplete"),
        ("segment://t/n/x/0000-7fff", "0000-7fff-1"),
        ("segment://t/n/x/0000-7FFF-1", "0000-7fff-1"),
        ("segment://t/n/x/0000-7fff-01", "0000-7fff-1"),
        ("segment://t/n/x/0000-7fff--1", "0000-7fff-1"),
        ("segment://t/n/x/7fff-0000-1", "0000-7fff-1"),
    ],
)
def test_a_bad_name_is_refused_with_what_to_do(text: str, says: str) -> None:
    with pytest.raises(InvalidNameError, match=says):
        TopicName.parse(text)


def test_a_segment_knows_its_topic_and_a_topic_names_its_segments() -> None:
    topic = TopicName.parse("topic://t/n/orders")
    segment = topic.segment_name(HashRange(0, 0x7FFF), 1)
    assert str(segment) == "segment://t/n/orders/0000-7fff-1"
    assert segment.segment == SegmentDescriptor(HashRange(0, 0x7FFF), 1)
    assert segment.topic == topic
    assert segment.is_segment
    assert not segment.is_scalable
    assert topic.is_scalable
    assert topic.topic is topic
    assert topic.namespace_name == "t/n"


def test_a_persistent_name_has_a_scalable_twin() -> None:
    assert str(TopicName.parse("persistent://t/n/x").topic) == "topic://t/n/x"


def test_a_descriptor_belongs_to_segment_names_only() -> None:
    with pytest.raises(InvalidNameError):
        TopicName("topic", "t", "n", "x", SegmentDescriptor(FULL, 0))
    with pytest.raises(InvalidNameError):
        TopicName("segment", "t", "n", "x")


@pytest.mark.parametrize(
    ("local", "partition"),
    [
        ("x-partition-0", 0),
        ("x-partition-12", 12),
        ("x-partition-01", None),
        ("x-partition-", None),
        ("x-partition--1", None),
        ("-partition-3", None),
        ("x-partition-1-partition-2", 2),
        ("x", None),
    ],
)
def test_a_partition_suffix_is_a_plain_number(local: str, partition: int | None) -> None:
    name = TopicName.parse(local)
    assert name.partition == partition
    if partition is None:
        assert name.partitioned_topic == name


def test_partitions_are_named_after_their_topic() -> None:
    topic = TopicName.parse("x")
    assert topic.partition_name(3).local == "x-partition-3"
    assert topic.partition_name(3).partitioned_topic == topic
    with pytest.raises(InvalidNameError):
        topic.partition_name(3).partition_name(1)
    with pytest.raises(InvalidNameError):
        topic.partition_name(-1)


def test_storage_names_are_plain_and_readable() -> None:
    name = TopicName.parse("segment://public/default/orders/0000-7fff-1")
    assert name.storage_name == "segment~public~default~orders~0000-7fff-1"


def test_storage_names_tell_case_apart_by_more_than_case() -> None:
    upper, lower = TopicName.parse("Orders").storage_name, TopicName.parse("orders").storage_name
    assert upper.casefold() != lower.casefold()


def test_a_slash_and_its_escape_are_stored_apart() -> None:
    slash = TopicName.parse("topic://t/n/a/b").storage_name
    escape = TopicName.parse("topic://t/n/a%2fb").storage_name
    assert slash != escape
    assert "/" not in slash


def test_long_storage_names_are_cut_and_stay_apart() -> None:
    one = TopicName.parse("x" * 500 + "1").storage_name
    two = TopicName.parse("x" * 500 + "2").storage_name
    assert one != two
    assert len(one) == len(two) == STORAGE_NAME_MAX


def test_the_longest_names_that_fit_are_stored_as_they_are() -> None:
    room = STORAGE_NAME_MAX - len(TopicName.parse("x").storage_name) + 1
    assert TopicName.parse("x" * room).storage_name.endswith("~" + "x" * room)
    cut = TopicName.parse("x" * (room + 1)).storage_name
    assert len(cut) == STORAGE_NAME_MAX
    assert "+" in cut


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("a b/c", "a+b%2Fc"), ("é~*", "%C3%A9%7E*"), (".", "%2E"), ("..", "%2E%2E"), ("v1.2", "v1.2")],
)
def test_path_elements_are_encoded_as_java_does(text: str, encoded: str) -> None:
    assert encode_part(text) == encoded
    assert decode_part(encoded) == text


def test_an_empty_text_is_no_path_element() -> None:
    with pytest.raises(InvalidNameError):
        encode_part("")


def test_subscription_names_are_printable() -> None:
    assert validate_subscription("my/sub 1") == "my/sub 1"
    for bad in ("", " a", "a\n", "a\x00", "\udfff"):
        with pytest.raises(InvalidNameError):
            validate_subscription(bad)


def test_a_namespace_has_two_parts() -> None:
    assert parse_namespace("t/n") == ("t", "n")
    for bad in ("t", "t/", "/n", "t/n/x"):
        with pytest.raises(InvalidNameError):
            parse_namespace(bad)
