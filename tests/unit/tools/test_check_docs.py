"""The check of documents finds names of missing files, and documents that outgrow their limits."""

from __future__ import annotations

from tools.check_docs import LINES_MAX, WIDTH_MAX, missing_names, oversize

KNOWN = ("src/anabranch/broker/serving/producer.py", "src/anabranch/broker/dispatch/")


def test_names_of_existing_files_and_folders_pass() -> None:
    text = "`serving/producer.py` appends; `dispatch/` chooses; `make check` is not a file."
    assert list(missing_names(text, KNOWN)) == []


def test_names_of_missing_files_are_found_with_their_line() -> None:
    text = "first\n`serving/publisher.py` and `erving/producer.py`"
    assert list(missing_names(text, KNOWN)) == [(2, "serving/publisher.py"), (2, "erving/producer.py")]


def test_wide_lines_and_long_documents_are_found() -> None:
    fits = "\n".join(["x" * WIDTH_MAX] * LINES_MAX)
    assert list(oversize(fits)) == []
    assert [line for line, _ in oversize("x" * (WIDTH_MAX + 1))] == [1]
    assert [line for line, _ in oversize(fits + "\nx\nx")] == [LINES_MAX + 1]
