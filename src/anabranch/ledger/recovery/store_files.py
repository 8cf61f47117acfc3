"""The two files of which a store keeps two copies each: catalog and bounds.

A copy is replaced only after the other one is durable, so one of them is intact at any time, and damage to
one copy loses nothing. This module knows nothing of journals and ledgers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from anabranch.errors import CorruptDataError
from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.catalog import (
    Bounds,
    Catalog,
    decode_bounds,
    decode_catalog,
    encode_bounds,
    encode_catalog,
)

CATALOG = "catalog"
BOUNDS = "bounds"


class Numbered(Protocol):
    """A value with a serial number."""

    @property
    def serial(self) -> int: ...


T = TypeVar("T", bound=Numbered)


@dataclass(slots=True)
class Loaded(Generic[T]):
    """Both copies as they were found."""

    newest: T | None = None
    current: bool = False
    """Whether both copies are intact and equal."""
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class PairedFile(Generic[T]):
    """One value, stored in two files."""

    def __init__(
        self, disk: Disk, file: str, encode: Callable[[T], bytes], decode: Callable[[bytes], T]
    ) -> None:
        self.files = (file, f"{file}.copy")
        self._disk = disk
        self._encode = encode
        self._decode = decode

    async def load(self, sizes: dict[str, int]) -> Loaded[T]:
        """Return the newer intact copy. A damaged copy is a finding. May raise UnsupportedFormatError."""
        loaded: Loaded[T] = Loaded()
        whole: dict[bytes, T] = {}
        read = 0
        for file in self.files:
            if file not in sizes:
                loaded.missing.append(file)
                continue
            # The writer may have died before the name was durable.
            await self._disk.sync([file])
            data = await self._disk.read(file, 0, sizes[file])
            try:
                whole[data] = whole[data] if data in whole else self._decode(data)
                read += 1
            except CorruptDataError as error:
                loaded.findings.append(Finding(file, str(error)))
        loaded.newest = max(whole.values(), key=lambda value: value.serial, default=None)
        loaded.current = read == 2 and len(whole) == 1
        return loaded

    async def save(self, value: T, *, urgent: bool = False) -> int:
        """Replace both copies durably, and return their size in bytes."""
        data = self._encode(value)
        for file in self.files:
            await self._disk.replace(file, data, urgent=urgent)
        return len(data) * len(self.files)


class StoreFiles:
    """The catalog and bounds of one store."""

    def __init__(self, disk: Disk) -> None:
        self.catalog: PairedFile[Catalog] = PairedFile(disk, CATALOG, encode_catalog, decode_catalog)
        self.bounds: PairedFile[Bounds] = PairedFile(disk, BOUNDS, encode_bounds, decode_bounds)
