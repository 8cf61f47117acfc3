"""Batches of messages as bytes, sound and damaged ones."""

from __future__ import annotations

from struct import pack

from hypothesis import strategies as st

from anabranch.protocol.varints import encode_varint
from tests.properties.python_forms import FIRST

LIES = st.sampled_from([0] * 12 + [-1, 1, 100])
TIMES = st.sampled_from([0, 5, 2**40, 2**42 - 1, 2**42, 2**62])


@st.composite
def messages(draw: st.DrawFn, usual: bool) -> bytes:
    """One message of a batch. Unusual messages have headers of other shapes, or wrong sizes."""
    lies = st.just(0) if usual else LIES
    odd = st.just(False) if usual else st.sampled_from([False] * 4 + [True])
    value = bytes(draw(st.sampled_from([0, 1, 5, 127, 128, 300])))
    key = bytes(draw(st.sampled_from([0, 1, 3, 120] if usual else [0, 3, 127, 128])))
    fields = []
    if draw(st.booleans()):
        fields.append(b"\x12" + encode_varint(max(0, len(key) + draw(lies))) + key)
    fields.append(b"\x18" + encode_varint(max(0, len(value) + draw(lies))))
    if draw(st.sampled_from([False] * 3 + [True])):
        fields.append(b"\x28" + encode_varint(draw(TIMES)))
    if not draw(odd):
        number = encode_varint(draw(FIRST | st.just(2**63))) + b"\x80" * draw(lies)
        fields.append((b"\x38" if draw(odd) else b"\x40") + number)
    if draw(odd):
        fields.insert(draw(st.integers(0, len(fields))), b"\x30\x00")
    header = b"".join(fields)
    return pack(">I", len(header) + draw(lies)) + header + value


BATCHES = st.booleans().flatmap(lambda usual: st.lists(messages(usual), min_size=1, max_size=5))
