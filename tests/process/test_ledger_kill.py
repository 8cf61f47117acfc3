"""SIGKILL of a writing process, repeated: each confirmed entry is stored at the confirmed place."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from anabranch.clock import SystemClock
from anabranch.ledger.disks.os_disk import OsDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.storage import Entry
from tests.process.ledger_writer import LOGS, payload

ROUNDS = 12
SECONDS_MAX = 10.0


class Confirmed:
    """The confirmations of the killed processes, over all rounds."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.acks: set[tuple[str, int]] = set()

    def hear(self, output: bytes) -> None:
        # A line without its end was cut by the kill and promises nothing.
        for line in output.decode().split("\n")[:-1]:
            what, log, ordinal, *place = line.split(" ")
            if what == "ack":
                self.acks.add((log, int(ordinal)))
                continue
            ledger, entry, index = map(int, place)
            told = self.places.setdefault((log, int(ordinal)), (ledger, entry, index))
            assert told == (ledger, entry, index), f"{log} {ordinal} was confirmed twice, differently"


def run_and_kill(root: Path, seed: int, lives_s: float) -> bytes:
    command = [sys.executable, "-m", "tests.process.ledger_writer", str(root), str(seed)]
    # Unbuffered, so a read returns the available bytes instead of waiting for more.
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        heard = process.stdout.readline()
        assert heard, "the writer ended by itself"
        timer = time.monotonic() + lives_s
        while time.monotonic() < timer:
            heard += process.stdout.read(65536)
        process.kill()
        return heard + process.stdout.read()


async def check(root: Path, confirmed: Confirmed) -> int:
    """Compare the stored entries with the confirmed ones; return the number of stored entries."""
    storage = FileStorage(OsDisk(root), clock=SystemClock())
    await storage.open()
    found: dict[tuple[str, int], Entry] = {}
    for name in LOGS:
        log = storage.get(name)
        assert log is not None
        at = index = 0
        while entries := await log.read(at, 10_000, 10**6):
            for entry in entries:
                assert (entry.ordinal, entry.index) == (at, index)
                assert entry.data == payload(name, at)
                found[name, at] = entry
                at, index = at + 1, index + entry.count
        assert (log.extent.next_ordinal, log.extent.next_index) == (at, index)
        assert log.sequences.own["writer"] == at - 1
        acks = log.cursors["reader"].acks
        lost = [ordinal for log_name, ordinal in confirmed.acks if log_name == name and ordinal not in acks]
        assert lost == []
    for key, place in confirmed.places.items():
        assert key in found, f"{key} was confirmed and is gone"
        assert (*found[key].position, found[key].index) == place
    await storage.close()
    return len(found)


async def test_confirmed_writes_survive_a_kill(tmp_path: Path) -> None:
    rng = random.Random(5)
    confirmed = Confirmed()
    begun = time.monotonic()
    rounds = 0
    while rounds < ROUNDS and time.monotonic() - begun < SECONDS_MAX:
        confirmed.hear(run_and_kill(tmp_path / "data", rounds, rng.uniform(0.0, 0.5)))
        # The check opens a copy, so the next round begins with exactly the files that the kill left.
        shutil.copytree(tmp_path / "data", tmp_path / f"copy-{rounds}")
        stored = await check(tmp_path / f"copy-{rounds}", confirmed)
        shutil.rmtree(tmp_path / f"copy-{rounds}")
        assert stored >= len(confirmed.places)
        rounds += 1
    assert rounds >= 3
    assert len(confirmed.places) > 100
    assert len(confirmed.acks) > 10
    # The directory the kills left is itself in order, not only its copies.
    await check(tmp_path / "data", confirmed)
