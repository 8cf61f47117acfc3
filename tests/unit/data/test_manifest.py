"""The manifest of a backup."""

from __future__ import annotations

import pytest

from anabranch.data.manifest import BackupFile, Manifest, decode_manifest, encode_manifest
from anabranch.errors import CorruptDataError, UnsupportedFormatError

MANIFEST = Manifest(1, [BackupFile("stores/0/catalog").extended(b"abc"), BackupFile("FORMAT")])


def test_decode_undoes_encode() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_checksum_covers_all_bytes_in_their_order() -> None:
    assert BackupFile("a").extended(b"ab").extended(b"c") == BackupFile("a").extended(b"abc")
    assert BackupFile("a").extended(b"cab") != BackupFile("a").extended(b"abc")


def test_any_flipped_bit_is_noticed() -> None:
    right = encode_manifest(MANIFEST)
    for bit in range(8 * (len(right) - 1)):
        damaged = bytearray(right)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode_manifest(bytes(damaged))


@pytest.mark.parametrize("path", ["/etc/passwd", "../LOCK", "stores/../../x", "", "a//b"])
def test_path_that_leads_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(CorruptDataError, match="outside"):
        decode_manifest(encode_manifest(Manifest(1, [BackupFile(path)])))


def test_manifest_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError):
        decode_manifest(encode_manifest(Manifest(1, [], version=2)))
