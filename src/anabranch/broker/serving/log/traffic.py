"""Samples the entries that are published to one log, so that the load of each key is known.

A publish pays for a subtraction and a comparison; only a sampled entry is opened as far as its key, and the
number of samples between two calls of `age` is bounded. Every sample stands for as much load as the distance
to the next one, which is random around a mean: keys that come in turns are all seen. Must not know producers
or layouts.
"""

from __future__ import annotations

from typing import Final

from mmh3 import hash as _murmur

from anabranch.errors import RemoteProtocolError
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.traffic_sketch import NO_TRAFFIC, HotHash, TrafficSketch, TrafficSummary
from anabranch.protocol.outer import read_sample_key

LOAD_SHIFT: Final = 12
"""An entry counts one message more for every 2 ** LOAD_SHIFT bytes; split thresholds have this relation."""
SAMPLES_MAX: Final = 256
"""Samples between two calls of `age` before samples become rarer."""
DECAY: Final = 0.9
"""Share of the earlier load that still counts after `age`."""


class TrafficMeter:
    """The load of one log by key. A log without recent entries keeps no sketch."""

    __slots__ = ("_random", "_sketch", "_stride", "_taken", "_whole", "left")

    def __init__(self, whole: HashRange = FULL) -> None:
        """`whole` are the slots of the keys: the range of a segment."""
        self._whole = whole
        self._sketch: TrafficSketch | None = None
        self._stride = 1
        """Mean load between two samples."""
        self._taken = 0
        self._random = whole.start
        self.left = 1
        """Load until the next sample; publishers subtract theirs and call `take` when nothing is left."""

    def take(self, entry: bytes) -> None:
        """Sample an entry that was just subtracted from `left`."""
        sketch = self._sketch
        if sketch is None:
            sketch = self._sketch = TrafficSketch(self._whole)
        stride = self._stride
        points, rest = divmod(-self.left, stride)
        weight = (1 + points) * stride
        self._random = random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        self.left = 1 + (random >> 8) % (2 * stride - 1) - rest
        try:
            key = read_sample_key(entry)
        except RemoteProtocolError:
            key = None
        if key is None:
            sketch.add_keyless(weight)
        else:
            sketch.add(_murmur(key, 0, False), weight, key)
        self._taken += 1
        if self._taken >= SAMPLES_MAX:
            self._taken = 0
            self._stride = 2 * stride

    def age(self) -> None:
        """Let earlier load count less, and adapt to the rate; called at even intervals."""
        sketch = self._sketch
        if sketch is None:
            return
        if self._taken < SAMPLES_MAX // 2:
            self._stride = max(1, self._stride // 2)
            self.left = min(self.left, 2 * self._stride)
        self._taken = 0
        sketch.decay(DECAY)
        if sketch.samples < 1:
            self._sketch = None

    def hottest(self, most: int) -> tuple[HotHash, ...]:
        """Return the heaviest key hashes, the heaviest first; none while too few entries came."""
        return () if self._sketch is None else self._sketch.hottest(most)

    def summary(self) -> TrafficSummary:
        return NO_TRAFFIC if self._sketch is None else self._sketch.summary()
