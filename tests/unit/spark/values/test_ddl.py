"""The check of a DDL accepts the types that values can have, and names the place where a text is wrong."""

from __future__ import annotations

import re

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.values.ddl import check_ddl


@pytest.mark.parametrize(
    "text",
    [
        "id bigint, `a b` array<string>, at timestamp",
        "id: long NOT NULL COMMENT 'it''s \\' id', `\u00e4` ARRAY <MAP<string, STRUCT<x:dec(10,2),y byte>>>",
        "id int, -- the id\n price decimal(38, 18) /* in\n euros */, note varchar(10)",
        'empty struct<>, name string collate UTF8_LCASE comment "x", price decimal(3, 2), t timestamp_ltz',
        "at timestamp without time zone, date date, `a``b` real, 1st numeric",
    ],
)
def test_fields_with_known_types_are_accepted(text: str) -> None:
    check_ddl(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id bigint, nam", "expected a type at its end"),
        ("id bigin, name string", "expected a type at 'bigin, name string'"),
        ("id long name string", "expected a comma or the end at 'name string'"),
        ("id bigint,", "expected the name of a field"),
        ("\u00e4 int", "(in backquotes unless it has only letters a-z, digits and _) at '\u00e4 int'"),
        ("struct<id:bigint>", "expected a type at '<id:bigint>'"),
        ("registred", "expected a type at its end. Give a list of fields"),
        ("id bigint>, x struct<y int", "expected a comma or the end at '>, x struct<y int'"),
        ("tags array<string, n int", "expected > at ', n int'"),
        ("m map<string>", "expected , at '>'"),
        ("id bigint -- comment", "expected a comma or the end at '-- comment'"),
        ("id bigint not", "expected null at its end"),
        ("id bigint comment x", "expected a text in quotes at 'x'"),
        ("price decimal(10", "expected ) at its end"),
        ("", "expected the name of a field"),
    ],
)
def test_the_place_of_a_mistake_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(reason)) as refused:
        check_ddl(text)
    assert f"valueSchema {text!r} is not valid DDL" in str(refused.value)
    assert "map<string,type>" in str(refused.value)
