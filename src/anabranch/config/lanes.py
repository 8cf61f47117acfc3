"""The settings of lanes, in which the messages of a stuck key wait: a part of `BrokerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config.fields import setting

KEYED_DISPATCH = ("lanes", "window")


@dataclass(frozen=True, kw_only=True)
class LaneConfig:
    """How subscriptions that deliver by key or bucket treat a key whose messages are stuck."""

    keyed_dispatch: str = setting(
        "lanes",
        "How far delivery goes on past stuck keys: lanes is without limit, window is 10,000 entries.",
    )
    keyed_consistent_hashing: bool = setting(
        True,
        "Key_Shared consumers share keys by consistent hashing; if false, each has one range of hashes.",
        pulsar="subscriptionKeySharedUseConsistentHashing",
    )
    lane_after_s: float = setting(
        1.0, "A key that waits for this long is shown as a lane, in commands and metrics.", low=0
    )
    lane_unacked_s: float = setting(
        30.0,
        "A message that is not acknowledged within this time gives its key a lane. 0 means never.",
        low=0,
    )
    lane_max: int = setting(
        50_000, "Most lanes of a subscription; with more, it stops reading past stuck keys.", low=1
    )
    lane_memory_bytes: int = setting(
        32 * 2**20,
        "Memory for the lanes of a subscription; beyond it, it stops reading past stuck keys.",
        low=64 * 2**10,
    )
    lane_relief: bool = setting(
        True, "Whether other keys of a consumer that is busy with one key go to consumers with room."
    )
    lane_note_entries: int = setting(
        10_000,
        "About how many delivered messages a restart reads again before delivery continues past the lanes.",
        low=1,
    )
    lane_retained_bytes: int = setting(
        2**30,
        "Bytes that the lanes of a subscription may keep in the log; beyond it, they move to a side log.",
        low=0,
    )
    lane_spill: bool = setting(True, "Whether lanes move to a side log at all.")
