"""Refuse prose that a reader has to decode: riddles in place of nouns, and phrases that are not English.

The check reads the docstrings, comments and string literals of several words in Python files, and the
paragraphs of the documents; code in backticks and code blocks is skipped. Run it from the root of the
repository, with folders or files as arguments to check only those. It prints each finding and exits with 1 if
there is one. `--count` prints a number per folder instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "simulation", "benchmarks", "tests", "examples", "tools")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
SKIPPED = ("protocol/pb/", "check_prose.py")

CODE = re.compile(r"`[^`]*`")
FENCE = re.compile(r"\s*(```|~~~)")

# A pronoun in place of the noun that acts. A relative pronoun ("a reader who waits") is ordinary English.
PRONOUNS = re.compile(
    r"\b(whoever|whomever|whatever|nobody|somebody|anybody|everybody|everyone|anyone|someone)\b", re.I
)
OPENINGS = re.compile(r"(?:^|[.:;!?] )(What|Who|Whose|Where|That)\b(?! (is|are) )")

# "is no file" in place of "is not a file". "There is no", "there must be no" and "is no longer" pass.
IS_NO = re.compile(
    r"\b(?P<there>there (?:\w+ )?)?(?P<phrase>(?:is|are|was|were|be) no)\b"
    r"(?! (?:longer|more|less|fewer|better|worse|larger|smaller|older|newer|later|earlier|faster|slower)\b)",
    re.I,
)
PHRASES = re.compile(
    r"\b(?:of ours|anew|in vain|at hand|(?:its|their) own matter|for want of)\b|for the (?:\d+|\{\})\. time",
    re.I,
)

# A file without any of these is not parsed: that saves two thirds of the time. Between two words of a phrase
# there may be a line break, a `#`, or the end of one string literal and the beginning of the next.
HINTS = re.compile(
    r"\b(?i:whoever|whomever|whatever|nobody|somebody|anybody|everybody|everyone|anyone|someone"
    r"|ours|anew|vain|hand|matter|want|(?:is|are|was|were|be)\W+f?\W*no)\b"
    r"|\b(?:What|Who|Whose|Where|That)\b|\. time\b"
)


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Every comment, docstring and message of a Python file, with its line; values in f-strings are `{}`."""
    yield from _comments(source)
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if text.count(" ") > 1:
            yield node.lineno, re.sub(r"\s+", " ", text)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Every comment; lines that consist of a comment and follow each other are one text."""
    begin, end, texts = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, is_whole_line = token.start[0], token.line.lstrip().startswith("#")
        if texts and not (is_whole_line and line == end + 1):
            yield begin, " ".join(texts)
            texts = []
        if not texts:
            begin = line
        texts.append(token.string.lstrip("#! "))
        end = line if is_whole_line else 0
    if texts:
        yield begin, " ".join(texts)


def paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Every paragraph of a document in Markdown, with its first line. Code blocks are left out."""
    begin, texts, is_code = 0, list[str](), False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        is_fence = FENCE.match(line) is not None
        if texts and (is_fence or not line.strip()):
            yield begin, " ".join(texts)
            texts = []
        if is_fence:
            is_code = not is_code
        elif not is_code and line.strip():
            begin = begin if texts else number
            texts.append(line.strip())


def riddle_in(text: str) -> str | None:
    """Return the first word of a text that stands in for a noun of the domain."""
    found = PRONOUNS.search(text) or OPENINGS.search(text)
    return None if found is None else found.group(0).strip(".:;!? ")


def dialect_in(text: str) -> str | None:
    """Return the first phrase of a text that a native speaker would not write."""
    prose = CODE.sub("``", text)  # a name in code may well contain such a word
    for found in IS_NO.finditer(prose):
        if found["there"] is None:
            return found["phrase"]
    phrase = PHRASES.search(prose)
    return None if phrase is None else phrase.group(0)


def findings(path: Path) -> Iterator[str]:
    source = path.read_text()
    if HINTS.search(source) is None:
        return
    # In a document, "Where a namespace ..." follows a sentence that names the subject: only phrases count.
    is_document = path.suffix == ".md"
    for line, text in paragraphs(source) if is_document else sentences(source):
        phrase = dialect_in(text) or (None if is_document else riddle_in(text))
        if phrase is not None:
            begin = max(0, text.find(phrase) - 50)
            yield f"{path}:{line}: {phrase!r} in: {text[begin : begin + 100]}"


def files(place: Path) -> list[Path]:
    return sorted([*place.rglob("*.py"), *place.rglob("*.md")]) if place.is_dir() else [place]


def main(arguments: list[str]) -> int:
    counting = "--count" in arguments
    places = [argument for argument in arguments if not argument.startswith("--")]
    counts: Counter[str] = Counter()
    for place in places or (*FOLDERS, *DOCUMENTS):
        for path in files(Path(place)):
            if any(skipped in path.as_posix() for skipped in SKIPPED):
                continue
            for finding in findings(path):
                counts[path.parent.as_posix()] += 1
                if not counting:
                    print(finding)
    if counting:
        for name, count in sorted(counts.items()):
            print(f"{count:5} {name}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
