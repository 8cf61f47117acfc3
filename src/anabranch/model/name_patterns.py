r"""Patterns of topic names that a broker matches for its clients, in time that grows only with the name.

A client chooses the pattern, so a backtracking library could block the event loop for hours. The pattern
becomes a set of states, and each set that a character leads to is made once. The syntax is the part that
Java's and Python's patterns share: characters, classes, groups, alternatives, repetitions, \d \w \s, \Q...\E.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anabranch.errors import NotAllowedError

STATES_MAX: Final = 500
STEPS_KEPT: Final = 5000
"""Known steps from a set of states; they are forgotten when there are more."""
COUNT_MAX: Final = 100

Accepts = Callable[[str], bool]
Link = Callable[[int], int]
"""Puts a part of the pattern before a state; returns the state that the part begins with."""

_CLASSES: Final[dict[str, Accepts]] = {
    "d": lambda char: char in "0123456789",
    "w": lambda char: char.isascii() and (char.isalnum() or char == "_"),
    "s": lambda char: char in " \t\n\r\f\v",
}


class NamePattern:
    """A pattern that matches whole texts; NotAllowedError for syntax beyond the common part."""

    def __init__(self, pattern: str) -> None:
        self._accepts: list[Accepts | None] = [None]
        self._next: list[tuple[int, ...]] = [()]
        """The next states of each state: after its character, or at once if it accepts none. State 0 is the
        end."""
        self._text = pattern.removeprefix("^")
        if self._text.endswith("$") and not self._text.endswith("\\$"):
            self._text = self._text[:-1]
        self._at = 0
        link = self._alternatives()
        if self._at < len(self._text):
            raise self._refusal("an unmatched )")
        self._start = self._closure([link(0)])
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """Return whether the whole text has the form of the pattern."""
        states = self._start
        for char in text:
            key = states, char
            found = self._steps.get(key)
            if found is None:
                found = self._step(states, char)
                if len(self._steps) >= STEPS_KEPT:
                    self._steps.clear()
                self._steps[key] = found
            if not found:
                return False
            states = found
        return 0 in states

    def _step(self, states: frozenset[int], char: str) -> frozenset[int]:
        after = [
            follower
            for state in states
            if (accepts := self._accepts[state]) is not None and accepts(char)
            for follower in self._next[state]
        ]
        return self._closure(after)

    def _closure(self, states: list[int]) -> frozenset[int]:
        found: set[int] = set()
        while states:
            state = states.pop()
            if state not in found:
                found.add(state)
                if self._accepts[state] is None:
                    states.extend(self._next[state])
        return frozenset(found)

    def _state(self, accepts: Accepts | None, *after: int) -> int:
        if len(self._accepts) >= STATES_MAX:
            raise self._refusal("so many repetitions")
        self._accepts.append(accepts)
        self._next.append(after)
        return len(self._accepts) - 1

    # The parts of a pattern, from the loosest to the tightest.

    def _alternatives(self) -> Link:
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        if len(choices) == 1:
            return choices[0]
        return lambda after: self._state(None, *(choice(after) for choice in choices))

    def _sequence(self) -> Link:
        parts: list[Link] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))

        def link(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return link

    def _repeated(self, part: Link) -> Link:
        least, most = self._count()
        if self._peek() == "?":
            # A reluctant repetition matches the same whole texts.
            self._at += 1
        if (least, most) == (1, 1):
            return part
        if self._peek() in ("+", "*", "{"):
            raise self._refusal("a repetition of a repetition")

        def link(after: int) -> int:
            if most is None:
                loop = self._state(None)
                self._next[loop] = (part(loop), after)
                after = loop
            else:
                for _ in range(most - least):
                    after = self._state(None, part(after), after)
            for _ in range(least):
                after = part(after)
            return after

        return link

    def _count(self) -> tuple[int, int | None]:
        char = self._peek()
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if char in simple:
            self._at += 1
            return simple[char]
        if char != "{":
            return 1, 1
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise self._refusal("a malformed {")
        least = int(low)
        most = None if comma and not high else int(high or low)
        if max(least, most or 0) > COUNT_MAX or (most is not None and most < least):
            raise self._refusal(f"a count above {COUNT_MAX}, or one that falls")
        self._at = end + 1
        return least, most

    def _atom(self) -> Link:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._one(self._class())
        if char == ".":
            return self._one(lambda found: found != "\n")
        if char == "\\":
            return self._escape()
        if char in "*+?{^$":
            raise self._refusal(f"a {char!r} at this place")
        return self._one(char.__eq__)

    def _one(self, accepts: Accepts) -> Link:
        return lambda after: self._state(accepts, after)

    def _group(self) -> Link:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise self._refusal("a group with (?")
        inner = self._alternatives()
        if self._take() != ")":
            raise self._refusal("an unmatched (")
        return inner

    def _escape(self) -> Link:
        if self._peek() == "Q":
            end = self._text.find("\\E", self._at)
            end = len(self._text) if end < 0 else end
            quoted = self._text[self._at + 1 : end]
            self._at = end + 2
            parts = [self._one(char.__eq__) for char in quoted]

            def link(after: int) -> int:
                for part in reversed(parts):
                    after = part(after)
                return after

            return link
        return self._one(self._escaped())

    def _escaped(self) -> Accepts:
        char = self._take()
        if char.lower() in _CLASSES:
            accepts = _CLASSES[char.lower()]
            return accepts if char.islower() else lambda found: not accepts(found)
        if not char or char.isalnum():
            raise self._refusal(f"\\{char}")
        return char.__eq__

    def _class(self) -> Accepts:
        negated = self._peek() == "^"
        self._at += negated
        parts: list[Accepts] = []
        while (char := self._take()) != "]" or not parts:
            if not char or char == "[" or (char == "&" and self._peek() == "&"):
                raise self._refusal("a malformed class of characters")
            if char == "\\":
                parts.append(self._escaped())
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                parts.append(_between(char, self._take()))
            else:
                parts.append(char.__eq__)
        return lambda found: any(part(found) for part in parts) is not negated

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _refusal(self, found: str) -> NotAllowedError:
        return NotAllowedError(f"brokers do not match patterns with {found}; poll the list of topics instead")


def _between(first: str, last: str) -> Accepts:
    return lambda char: first <= char <= last
