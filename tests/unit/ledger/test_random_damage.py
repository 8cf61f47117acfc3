"""Random damage to one file of a store: no wrong payload, each damage reported, one record lost at most.

The environment variable FLIPS sets the number of flipped bits; `make flips` runs 1,000.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from anabranch.ledger.disks.os_disk import OsDisk
from tests.fakes.disk import DictDisk
from tests.harness.damaged_store import DamageJudge, StoreHistory, make_history
from tests.harness.storage import flip

FLIPS = int(os.environ.get("FLIPS", "100"))
FLIPS_PER_STORE = 50


def kind_of(file: str) -> str:
    return file.partition("/")[0] if not file.startswith("ledgers/") else file.rpartition(".")[2]


def pick_file(history: StoreHistory, rng: random.Random) -> str:
    """A file of a random kind, so that small and single files are hit too."""
    kinds = sorted({kind_of(file) for file in history.files})
    kind = rng.choice(kinds)
    return rng.choice([file for file in sorted(history.files) if kind_of(file) == kind])


def is_undone(disk: DictDisk, history: StoreHistory, file: str) -> bool:
    """Whether the file has its bytes again: recovery writes files behind the journal without reading them."""
    return disk.files.get(file, b"").startswith(history.files[file])


def _the(disk: DictDisk) -> DictDisk:
    return disk


async def test_a_flipped_bit_costs_one_record_at_most_and_is_reported() -> None:
    hit: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for number in range(FLIPS):
        if number % FLIPS_PER_STORE == 0:
            history = await make_history(number)
        rng = random.Random(f"flip {number}")
        file = pick_file(history, rng)
        at, bit = rng.randrange(len(history.files[file])), rng.randrange(8)
        place = f"flip {number}: {file} byte {at} bit {bit}"
        damaged = DictDisk({**history.files, file: flip(history.files[file], at, bit)})
        judge = DamageJudge(history, exact=True)
        try:
            await judge.judge(partial(_the, damaged), rng)
        except Exception as error:
            raise AssertionError(place) from error
        undone = kind_of(file) in ("data", "index") and is_undone(damaged, history, file)
        assert judge.reported or undone, place
        assert judge.lost <= 1, place
        hit[kind_of(file)] += 1
        lost[kind_of(file)] += judge.lost
    assert set(hit) == {"catalog", "catalog.copy", "bounds", "bounds.copy", "journal", "data", "index"}
    assert set(+lost) <= {"journal", "data"}


@pytest.mark.parametrize("seed", range(4))
async def test_a_lost_file_costs_only_records_that_no_other_file_holds(seed: int) -> None:
    history = await make_history(seed)
    for file in history.files:
        left = DictDisk(history.files)
        del left.files[file]
        judge = DamageJudge(history, exact=kind_of(file) != "journal")
        try:
            await judge.judge(partial(_the, left), random.Random(seed))
        except Exception as error:
            raise AssertionError(f"without {file}") from error
        assert judge.reported or is_undone(left, history, file), file
        assert not judge.lost or kind_of(file) in ("journal", "data"), file


@pytest.mark.parametrize("seed", range(4))
async def test_a_cut_file_costs_only_records_that_no_other_file_holds(seed: int) -> None:
    history = await make_history(seed)
    rng = random.Random(f"cut {seed}")
    newest = max(file for file in history.files if file.startswith("journal/"))
    for file, whole in history.files.items():
        left = DictDisk(history.files)
        size = rng.randrange(len(whole))
        left.files[file] = whole[:size]
        judge = DamageJudge(history, exact=kind_of(file) != "journal", cut=file == newest)
        try:
            await judge.judge(partial(_the, left), rng)
        except Exception as error:
            raise AssertionError(f"{file} cut to {size} of {len(whole)}") from error
        # The end of the newest journal file may be missing after a power failure.
        assert judge.reported or file == newest or is_undone(left, history, file), file


@pytest.mark.real_time
async def test_damage_on_real_files_is_judged_alike(tmp_path: Path) -> None:
    history = await make_history(99)
    for number in range(10):
        rng = random.Random(f"real {number}")
        file = pick_file(history, rng)
        root = tmp_path / str(number)
        damaged = flip(history.files[file], rng.randrange(len(history.files[file])), rng.randrange(8))
        for name, data in {**history.files, file: damaged}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        judge = DamageJudge(history, exact=True)
        await judge.judge(partial(OsDisk, root), rng)
        assert judge.reported or (root / file).read_bytes().startswith(history.files[file]), file
        assert judge.lost <= 1, file
