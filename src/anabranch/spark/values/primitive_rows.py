"""Values of Pulsar's primitive schemas: one number or text per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from anabranch.schemas.primitives import DECODERS
from anabranch.spark.values.formats import Getter, Path


class PrimitiveRows:
    """Decodes the values of a primitive schema by Pulsar's name of it."""

    def __init__(self, name: str) -> None:
        self._decode = DECODERS[name]

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._decode, values))

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        raise TypeError("a primitive value has no fields")

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        return pa.array(values, kind)
