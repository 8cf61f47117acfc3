"""The life of one store at one broker: which step comes next, and which state each step leads to.

The broker that a store should belong to is a function of the living brokers, so all brokers agree on it. The
shell in `ownership.py` looks at the aim of a store, carries out the step that `next_step` names, and looks
again. A store goes up from UNOWNED to SERVED step by step, and down again in an order that keeps it served
for as long as possible.

Example: workers 0 to 3 own stores 0 to 3, and worker 1 dies. Of the living brokers {0, 2, 3}, `desired_owner`
chooses broker 2 for store 1. Its aim becomes OWN, and it takes the steps OPEN, PUBLISH and ANNOUNCE. When
worker 1 is back, broker 2 has the aim GIVE_UP: CHECKPOINT, LEAVE, CLOSE and WITHDRAW. Worker 1 retries OPEN
until CLOSE has released the lock, so the store is unserved only between LEAVE and the ANNOUNCE of worker 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from anabranch.metadata.broker_record import BrokerRecord
from anabranch.model.hashing import key_hash


class StoreAim(Enum):
    """The intention of this broker for a store."""

    OWN = 0
    GIVE_UP = 1
    """Another broker should own the store."""
    STOP = 2
    """This broker stops."""


class StoreState(Enum):
    UNOWNED = auto()
    """Not open here, and no record says that this broker owns the store."""
    OPENED = auto()
    """The storage is open and locked by this broker."""
    PUBLISHED = auto()
    """The record of the store names this broker as the owner."""
    UNSETTLED = auto()
    """The storage is open, but publishing or announcing the store failed."""
    SERVED = auto()
    """The broker leads the topics at home in the store."""
    CHECKPOINTED = auto()
    """As SERVED, and the next opening of the store will be short."""
    LEFT = auto()
    """The topics are given up; the storage is still open."""
    CLOSED = auto()
    """The storage is closed; the record may still name this broker."""


class StoreStep(Enum):
    OPEN = auto()
    PUBLISH = auto()
    ANNOUNCE = auto()
    """Lead the topics of the store."""
    CHECKPOINT = auto()
    KEEP = auto()
    """Keep serving: the store is wanted again after its checkpoint."""
    LEAVE = auto()
    """Give up the topics of the store and disconnect its clients."""
    CLOSE = auto()
    WITHDRAW = auto()
    """Publish that the store has no owner."""


class StepOutcome(NamedTuple):
    """The state after a step that succeeded, and after one that failed."""

    done: StoreState
    failed: StoreState


OUTCOMES: Final[Mapping[StoreStep, StepOutcome]] = {
    StoreStep.OPEN: StepOutcome(StoreState.OPENED, failed=StoreState.UNOWNED),
    StoreStep.PUBLISH: StepOutcome(StoreState.PUBLISHED, failed=StoreState.UNSETTLED),
    StoreStep.ANNOUNCE: StepOutcome(StoreState.SERVED, failed=StoreState.UNSETTLED),
    StoreStep.CHECKPOINT: StepOutcome(StoreState.CHECKPOINTED, failed=StoreState.SERVED),
    StoreStep.KEEP: StepOutcome(StoreState.SERVED, failed=StoreState.SERVED),
    # A store that cannot be left or closed in order is given up all the same; recovery puts it right.
    StoreStep.LEAVE: StepOutcome(StoreState.LEFT, failed=StoreState.LEFT),
    StoreStep.CLOSE: StepOutcome(StoreState.CLOSED, failed=StoreState.CLOSED),
    StoreStep.WITHDRAW: StepOutcome(StoreState.UNOWNED, failed=StoreState.CLOSED),
}

_STEPS: Final[Mapping[StoreState, tuple[StoreStep | None, StoreStep | None, StoreStep | None]]] = {
    # One column for each aim: OWN, GIVE_UP, STOP.
    StoreState.UNOWNED: (StoreStep.OPEN, None, None),
    # A store that was just recovered is served while its checkpoint is written, even if it is to be given up.
    StoreState.OPENED: (StoreStep.PUBLISH, StoreStep.PUBLISH, StoreStep.LEAVE),
    StoreState.PUBLISHED: (StoreStep.ANNOUNCE, StoreStep.ANNOUNCE, StoreStep.LEAVE),
    StoreState.UNSETTLED: (StoreStep.PUBLISH, StoreStep.LEAVE, StoreStep.LEAVE),
    StoreState.SERVED: (None, StoreStep.CHECKPOINT, StoreStep.LEAVE),
    StoreState.CHECKPOINTED: (StoreStep.KEEP, StoreStep.LEAVE, StoreStep.LEAVE),
    StoreState.LEFT: (StoreStep.CLOSE, StoreStep.CLOSE, StoreStep.CLOSE),
    StoreState.CLOSED: (StoreStep.WITHDRAW, StoreStep.WITHDRAW, StoreStep.WITHDRAW),
}


def next_step(state: StoreState, aim: StoreAim) -> StoreStep | None:
    """Return the step to carry out now, or None if the store is in the state that is wanted."""
    return _STEPS[state][aim.value]


def aim_for(
    store: int, me: int, living: Collection[int], *, awaited: Collection[int] = (), stopping: bool = False
) -> StoreAim:
    """The intention of broker `me` for a store; the stores of `awaited` brokers are left to them."""
    if stopping:
        return StoreAim.STOP
    wanted = desired_owner(store, {*living, me}) == me and store not in awaited
    return StoreAim.OWN if wanted else StoreAim.GIVE_UP


def desired_owner(store: int, brokers: Collection[int]) -> int | None:
    """Return the broker that should own a store: the one of its number, or one that all brokers agree on."""
    if store in brokers:
        return store
    # The highest hash of store and broker wins (rendezvous hashing): the stores of a dead broker are spread
    # over the living ones, and no store changes hands between two brokers that both stay alive.
    return max(brokers, key=lambda broker: (key_hash(f"{store}/{broker}"), broker), default=None)


def holder_name(broker: BrokerRecord) -> str:
    """The name that a broker writes into the lock of a store."""
    return f"broker {broker.id}/{broker.generation}"


def lease_is_over(holder: str, brokers: Mapping[int, BrokerRecord]) -> bool:
    """Whether the holder of a lock is a broker that is no longer alive. Other holders have no lease."""
    return holder.startswith("broker ") and holder not in map(holder_name, brokers.values())
