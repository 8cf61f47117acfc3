"""The shape of one cluster run, drawn from its seed: sizes, limits and faults.

Pure: a generator in, a value out. Must not know how a run proceeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.client.options import Batching
from anabranch.controller.topic.layout_changes import STEPS
from anabranch.ledger.limits import StorageLimits
from simulation.cluster.cluster import Death
from simulation.world.faults import StoreTrouble

OPERATIONS = ("split", "merge", "rebucket")
SENDER, READER = "sender", "reader"
"""The roles of producers and consumers in a run with rights."""

FAILPOINTS = tuple(f"{kind}.{step}" for kind in OPERATIONS for step in STEPS)

SPILL_STEPS = ("copied", "synced", "acknowledged", "drained", "deleted")

COMPACTION_STEPS = ("named", "copying", "copied", "switched", "marked")

OTHER_STEPS = (
    *(
        f"subscription.{kind}.{step}"
        for kind in ("create", "delete", "seek", "skip")
        for step in ("recorded", "applied")
    ),
    "prune.committed",
    *(f"spill.{step}" for step in SPILL_STEPS),
)
"""Steps at which a broker may die besides those of layout changes."""


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Faults of the disks: how often each occurs in a run."""

    slow: bool = False
    failed_writes: int = 0
    failed_reads: int = 0
    """Periods in which most reads fail."""
    full: int = 0
    """Periods in which a disk has next to no room."""
    damaged: int = 0
    """Stored records of which one bit turns over."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The values that a seed draws."""

    workers: int
    lease_s: float
    segments: int
    producers: int
    consumers: int
    queue_consumers: int
    keyed_consumers: int
    stuck: float
    """How probable it is that a message makes its key stuck, or its consumer hang, for a while."""
    checkpoints: bool
    keys: int
    messages: int
    operations: int
    in_flight_max: int
    pause_s: float
    ack_receipts: bool
    batching: Batching
    queue_size: int
    limits: StorageLimits
    link_faults: int
    sender_deaths: int
    """How often each sender dies and repeats some of its messages."""
    consumer_deaths: int
    consumer_pauses: int
    consumer_leaves: int
    kills: int
    pauses: int
    """Pauses of a broker, most of them longer than its lease."""
    stops: int
    """Orderly stops of a broker, as by SIGTERM."""
    stalls: int
    """How often the metadata store of one broker is slower than any lease for a while."""
    askers: int
    """Administrators that request layout changes at the same time."""
    lapses: int
    """How often the metadata store ends the lease of a live broker."""
    clock_jumps: int
    disk: DiskFaults
    liars: int
    """Producers that send entries whose metadata or payload lies."""
    late_subscriptions: int
    """Subscriptions created during the run; some are deleted again."""
    churn: int
    """How often another topic is created and deleted."""
    seeks: int
    """How often the stream subscription seeks to its start."""
    retention_s: float
    store_trouble: StoreTrouble
    auto_scale: bool
    deaths: tuple[Death, ...]
    busy_s: float
    guarded: bool
    """Whether brokers ask for credentials and check rights."""
    token_life_s: float
    intruders: int
    """Clients without rights that try what they may not do."""
    revocations: int
    """How often a role loses its rights for a while."""
    group_members: int
    """Checkpoint consumers that share the topic and commit."""
    compactions: int | None = None
    """How often a classic topic is compacted; None lets the run draw it, and a test may choose."""
    forgetful: bool = False
    """Whether queue consumers never acknowledge some messages; no seed draws it, a test may."""


def draw(rng: random.Random, step: str | None) -> Shape:
    """Draw a shape; with `step` the broker dies there, otherwise at random times or not at all."""
    if step is not None:
        # Later deaths hit the recovery from the first one.
        deaths = [Death(step, machine=rng.random() < 0.5)]
        while rng.random() < 0.3:
            deaths.append(Death(rng.choice([step, *FAILPOINTS]), machine=rng.random() < 0.5))
        kills = 0
    else:
        deaths, kills = [], rng.choice((0, 1, 1, 2, 3))
        if rng.random() < 0.2:
            deaths.append(Death(rng.choice(OTHER_STEPS), machine=rng.random() < 0.3))
    checkpoints = rng.random() < 0.3
    return Shape(
        workers=rng.choice((1, 1, 2, 3)),
        lease_s=rng.choice((0.5, 1.0, 3.0)),
        segments=rng.choice((1, 1, 2, 3)),
        producers=rng.choice((1, 2, 3)),
        **_draw_readers(rng),
        checkpoints=checkpoints,
        keys=rng.choice((1, 5, 20)),
        messages=rng.randrange(30, 150),
        operations=rng.randrange(1, 5),
        in_flight_max=rng.choice((1, 10, 1000)),
        pause_s=rng.choice((0.0, 0.005, 0.03)),
        ack_receipts=rng.random() < 0.5,
        batching=Batching(
            max_delay=rng.choice((0.0005, 0.01)), max_messages=rng.choice((1, 3, 50)), max_bytes=100_000
        ),
        queue_size=rng.choice((1, 10, 1000)),
        limits=StorageLimits(
            cache_bytes=rng.choice((0, 1000, 1_000_000)),
            journal_bytes_max=rng.choice((2000, 50_000)),
            ledger_bytes_max=rng.choice((500, 5000, 500_000)),
            behind_bytes=rng.choice((1, 2000)),
        ),
        link_faults=rng.choice((0, 0, 2, 5)),
        sender_deaths=rng.choice((0, 0, 0, 1, 3)),
        consumer_deaths=rng.choice((0, 0, 0, 1, 2)),
        kills=kills,
        consumer_leaves=rng.choice((0, 0, 1, 3)),
        consumer_pauses=rng.choice((0, 0, 0, 1, 2)),
        pauses=rng.choice((0, 0, 0, 0, 1)),
        stops=rng.choice((0, 0, 0, 1, 2)),
        stalls=rng.choice((0, 0, 0, 0, 1)),
        askers=rng.choice((1, 1, 1, 3)),
        lapses=rng.choice((0, 0, 0, 0, 1)),
        clock_jumps=rng.choice((0, 0, 1, 3)),
        disk=_draw_disk(rng),
        late_subscriptions=rng.choice((0, 0, 1, 2)),
        churn=rng.choice((0, 0, 0, 2, 4)),
        seeks=rng.choice((0, 0, 0, 0, 0, 0, 1, 2)),
        # A checkpoint consumer has no claim to messages older than the retention time.
        retention_s=7 * 86_400.0 if checkpoints else rng.choice((0.0, 1.0, 7 * 86_400.0)),
        store_trouble=rng.choice(
            (StoreTrouble(), StoreTrouble(), StoreTrouble(0.05, 0.05), StoreTrouble(0.0, 0.0, 0.5, 0.2))
        ),
        auto_scale=rng.random() < 0.3,
        deaths=tuple(deaths),
        busy_s=rng.uniform(0.3, 3.0),
        **_draw_strangers(rng) | _draw_group(rng, checkpoints),
    )


def draw_config(random_for: Callable[[str], random.Random]) -> dict[str, Any]:
    """Draw settings of the brokers; `random_for` gives the generator of a purpose."""
    return draw_lanes(random_for("lanes")) | _draw_credits(random_for("credits"))


def draw_lanes(rng: random.Random) -> dict[str, Any]:
    """Draw settings of lanes so small that a run meets the limits."""
    return {
        "keyed_dispatch": rng.choice(("lanes", "lanes", "lanes", "window")),
        "lane_unacked_s": rng.choice((0.0, 0.3, 30.0)),
        "lane_max": rng.choice((1, 3, 50_000)),
        "lane_note_entries": rng.choice((1, 10, 10_000)),
        "lane_retained_bytes": rng.choice((0, 500, 2**30)),
        "lane_spill": rng.random() < 0.8,
    }


def _draw_credits(rng: random.Random) -> dict[str, Any]:
    """Draw the settings that slow producers down: a small credit, and a rate of each topic."""
    return {
        "publish_credit_bytes": rng.choice((0, 1, 3000, 512 * 1024)),
        "publish_messages_per_s": rng.choice((0, 0, 0, 300)),
    }


def _draw_readers(rng: random.Random) -> dict[str, Any]:
    return {
        "consumers": rng.choice((1, 2, 2, 4)),
        "queue_consumers": rng.choice((0, 0, 0, 1, 2)),
        "keyed_consumers": rng.choice((0, 0, 1, 2, 3)),
        "stuck": rng.choice((0.0, 0.02, 0.1)),
    }


def _draw_group(rng: random.Random, checkpoints: bool) -> dict[str, Any]:
    """Draw the members of a checkpoint group, which needs the retention time of checkpoint consumers."""
    return {"group_members": rng.choice((0, 1, 2, 3)) if checkpoints else 0}


def _draw_strangers(rng: random.Random) -> dict[str, Any]:
    """Draw the clients that are not to be trusted, and the protection from them."""
    liars, guarded = rng.choice((0, 0, 0, 1, 4)), rng.random() < 0.5
    return {
        "liars": liars,
        "guarded": guarded,
        "token_life_s": rng.choice((math.inf, 1.0)),
        "intruders": rng.choice((0, 1, 3)) if guarded else 0,
        "revocations": rng.choice((0, 0, 0, 1, 2)) if guarded else 0,
    }


def _draw_disk(rng: random.Random) -> DiskFaults:
    return DiskFaults(
        slow=rng.random() < 0.1,
        failed_writes=rng.choice((0, 0, 0, 0, 1, 2)),
        failed_reads=rng.choice((0, 0, 0, 1, 3)),
        full=rng.choice((0, 0, 0, 0, 1, 2)),
        damaged=rng.choice((0, 0, 0, 0, 1, 3)),
    )
