"""The checksum of the bytes behind a prefix is that of the bytes alone."""

from __future__ import annotations

from random import Random

import google_crc32c
import pytest

from anabranch.protocol.checksums import SLICED_BYTES_MAX, crc32c_behind


@pytest.mark.parametrize("prefix", [0, 1, 6, 300])
@pytest.mark.parametrize("size", [300, SLICED_BYTES_MAX, SLICED_BYTES_MAX + 1, 100_000])
def test_the_prefix_does_not_count(prefix: int, size: int) -> None:
    data = Random(size + prefix).randbytes(size)
    assert crc32c_behind(prefix, data) == google_crc32c.value(data[prefix:])
