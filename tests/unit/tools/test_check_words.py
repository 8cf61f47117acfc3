from __future__ import annotations

import ast

from tools.check_words import HEADING, load, misuses, names

WORDS = {"live": ("broker/", "admin/routes/"), "run": ("client/consume/handlers/", "bench/")}


def found(path: str, source: str = "") -> list[str]:
    return list(misuses(path, names(path, ast.parse(source)), WORDS))


def test_the_words_are_read_from_the_table_of_the_glossary() -> None:
    document = (
        f"# A\n\n{HEADING}\n|---|---|---|\n| live | a topic | `broker/`, `admin/routes/` |\n\n| x | y | z |\n"
    )
    assert load(document) == {"live": ("broker/", "admin/routes/")}


def test_a_word_may_be_used_where_the_glossary_says() -> None:
    assert found("broker/serving/live_log.py", "class LiveLog: ...") == []


def test_a_module_and_a_class_elsewhere_are_refused() -> None:
    assert found("spark/live_sink.py", "\nclass LiveSink: ...") == [
        "spark/live_sink.py:1: live_sink uses 'live', which names something else, in broker/, admin/routes/",
        "spark/live_sink.py:2: LiveSink uses 'live', which names something else, in broker/, admin/routes/",
    ]


def test_plurals_count_and_parts_of_words_do_not() -> None:
    assert len(found("spark/a.py", "class BatchRuns: ...")) == 1
    assert found("spark/delivery.py", "class RunningAlive: ...") == []
