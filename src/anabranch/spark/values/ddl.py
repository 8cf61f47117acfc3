"""Checks the DDL of a value, because Spark's error would name a column that the user never wrote. Pure.

Spark parses the DDL as part of the schema of the source, and an error names the first column of that schema.
A source runs in a process without Spark's own parser, so this module parses the DDL itself.
"""

from __future__ import annotations

import re

from anabranch.errors import InvalidConfigurationError

_SKIPPED = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(r"\w+|`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|.", re.DOTALL)
_NAME = re.compile(r"\w+|`.+`", re.ASCII | re.DOTALL)

_PLAIN = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(p,s)"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz"),
)
_OTHER_NAMES = (
    *("byte", "short", "integer", "long", "real", "dec", "numeric"),
    *("char", "character", "varchar", "timestamp_ltz"),
)
_WORDS = {*(name.partition("(")[0] for name in _PLAIN), *_OTHER_NAMES}
_ZONES = {"with", "without", "local", "time", "zone"}


def check_ddl(text: str) -> None:
    """Raise InvalidConfigurationError unless a text is a list of fields with types that values can have."""
    checked = _Ddl(text)
    checked.fields()
    if checked.next:
        checked.refuse("a comma or the end")


class _Ddl:
    """A text, and the next token to read; it is empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.next = ""
        self._advance()

    def _advance(self) -> str:
        """Return the next token, and find the one after it."""
        found, begin = self.next, self._end
        skipped = _SKIPPED.match(self._text, begin)
        self._start = begin if skipped is None else skipped.end()
        token = _TOKEN.match(self._text, self._start)
        self.next, self._end = ("", self._start) if token is None else (token[0], token.end())
        return found

    def _take(self, *words: str) -> bool:
        """Skip the next token if it is one of these words, in upper or lower case; return whether it was."""
        found = self.next.lower() in words
        if found:
            self._advance()
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self.refuse(word)

    def refuse(self, expected: str) -> None:
        rest = self._text[self._start :]
        raise InvalidConfigurationError(
            f"valueSchema {self._text!r} is not valid DDL: expected {expected} "
            f"{f'at {rest!r}' if rest else 'at its end'}. Give a list of fields such as "
            f"'id bigint, tags array<string>'; a type is {', '.join(_PLAIN)}, array<type>, "
            "map<string,type> or struct<name:type,...>. Or give the JSON of an Avro schema, or registered"
        )

    def fields(self) -> None:
        """Skip fields that are separated by commas."""
        self._field()
        while self._take(","):
            self._field()

    def _field(self) -> None:
        if not _NAME.fullmatch(self.next):
            self.refuse("the name of a field (in backquotes unless it has only letters a-z, digits and _)")
        self._advance()
        self._take(":")
        self._type()
        if self._take("not"):
            self._expect("null")
        if self._take("comment"):
            if not self.next.startswith(("'", '"')):
                self.refuse("a text in quotes")
            self._advance()

    def _type(self) -> None:
        word = self.next.lower()
        if word not in _WORDS | {"array", "map", "struct"}:
            self.refuse("a type")
        self._advance()
        if word in _WORDS:
            self._rest_of_plain(word)
            return
        self._expect("<")
        if word == "struct":
            if self.next != ">":
                self.fields()
        else:
            self._type()
            if word == "map":
                self._expect(",")
                self._type()
        self._expect(">")

    def _rest_of_plain(self, word: str) -> None:
        """Skip the numbers of a type, and the words that may follow a string or a time."""
        if self._take("("):
            while self._take(",") or self.next.isdecimal():
                if self.next.isdecimal():
                    self._advance()
            self._expect(")")
        if word == "string" and self._take("collate"):
            self._advance()
        while word == "timestamp" and self._take(*_ZONES):
            pass
