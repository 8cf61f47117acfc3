"""The Python forms of the compiled functions, in place of the compiled ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import strategies as st

FIRST = st.sampled_from([0, 1, 127, 128, 2**14 - 3, 2**21, 2**28 - 2, 2**40, 2**62])


@contextmanager
def python_forms() -> Iterator[None]:
    with (
        patch("anabranch.client.decide.producing.outgoing.PackedRows", list),
        patch("anabranch.client.produce.preparing.largest_plain", None),
        patch("anabranch.protocol.entries.split_messages", None),
        patch("anabranch.protocol.entries.holds_messages", None),
        patch("anabranch.client.message.make_messages", None),
        patch("anabranch.client.produce.intake.add_rows", None),
        patch("anabranch.client.produce.intake.add_items", None),
        patch("anabranch.spark.decode.spans.find_messages", None),
        patch("anabranch.spark.decode.pieces.copy_messages", None),
        patch("anabranch.spark.sink.message_columns.join_messages", None),
        patch("anabranch.spark.columns.hash_rows", None),
    ):
        yield
