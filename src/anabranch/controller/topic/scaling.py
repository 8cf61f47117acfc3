"""The loads and last decisions of one topic's auto-scaling (PIP-483, and PIP-486 for buckets).

This module does not know how a decision is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from anabranch.aio import together
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import CorruptDataError, InvalidConfigurationError, NotFoundError
from anabranch.metadata.records import PolicyFields
from anabranch.model.layout import Segment
from anabranch.model.scaling.autoscale import Decision, decide
from anabranch.model.scaling.observed import LoadHistory, Observed, SegmentRates, advance_history
from anabranch.model.scaling.policy import AutoScalePolicy, Override, resolve, to_json
from anabranch.model.scaling.scale_steps import Keep, Merge, Rebucket, Split

DECISIONS_KEPT = 50


@dataclass(slots=True)
class Tally:
    """Layout changes since this broker leads the topic, and how often a limit prevented one. Only grows."""

    splits: int = 0
    merges: int = 0
    rebuckets: int = 0
    """Segments replaced by one with other buckets, by auto-scaling or by request."""
    splits_suppressed: int = 0
    merges_suppressed: int = 0

    def count(self, decision: Decision, *, done: bool) -> None:
        """Count a decision of auto-scaling; `done` means that its actions were committed."""
        self.splits_suppressed += "max_segments" in decision.capped
        self.merges_suppressed += "max_dag_depth" in decision.capped
        for action in (decision.action, *decision.then) if done else ():
            self.splits += isinstance(action, Split)
            self.merges += isinstance(action, Merge)


class Scaling:
    """The auto-scaling of the topic that `lead` leads."""

    def __init__(self, lead: Leadership) -> None:
        self._lead = lead
        self._rates: dict[int, SegmentRates] = {}
        self._namespace: PolicyFields | None = None
        self.looks: list[dict[str, Any]] = []
        """The last decisions, newest last, for operators."""
        self.history = LoadHistory()
        self.tally = Tally()
        self.clients = 0
        """The number of producers and consumers of the active segments at the last observation."""
        self.reload()

    def remember(self, tally: Tally, looks: Iterable[dict[str, Any]]) -> None:
        """Continue the counts and decisions of an earlier leadership of this process."""
        self.tally = tally
        self.looks.extend(looks)

    def reload(self) -> None:
        """Read the history from the record. A corrupt history counts as empty."""
        try:
            self.history = LoadHistory.from_json(self._lead.record.history)
        except CorruptDataError:
            self.history = LoadHistory()

    def policy(self) -> AutoScalePolicy:
        """Return the effective policy. Raises InvalidConfigurationError if its layers do not fit together."""
        return self.policy_with(self._lead.record.auto_scale_policy)

    def policy_with(self, topic: Override | None) -> AutoScalePolicy:
        """Return the policy that would be effective with this layer for the topic."""
        return resolve(self._lead.context.settings.auto_scale, self._namespace, topic)

    def describe_policy(self) -> dict[str, object]:
        """Return the effective policy, or the error in it."""
        try:
            return {**to_json(self.policy())}
        except InvalidConfigurationError as error:
            return {"enabled": False, "error": str(error)}

    async def load_namespace(self) -> None:
        try:
            found = await self._lead.context.topics.namespaces.load_namespace(self._lead.name.namespace_name)
            self._namespace = found.scalable_topic_auto_scale_policy
        except NotFoundError:
            self._namespace = None

    async def observe(self) -> Mapping[int, float]:
        """Measure the message rate per second of each active segment whose owner answers."""
        await self.load_namespace()
        active = self._lead.layout.active
        loads = await together(self._lead.load(segment) for segment in active)
        self.clients = sum(load.clients for load in loads if load is not None)
        now_s = self._lead.now_s()
        self._rates = {
            segment.id: rates_of(segment, load, now_s)
            for segment, load in zip(active, loads, strict=True)
            if load is not None
        }
        return {id_: rates.msg_rate_in + rates.msg_rate_out for id_, rates in self._rates.items()}

    def look(self, sharing_consumers: int, other_consumers: int) -> Decision:
        """Decide what to do now, and update the history; `other_consumers` cannot share a segment."""
        try:
            policy = self.policy()
        except InvalidConfigurationError as error:
            return Decision(Keep(), f"auto-scaling is off: {error}")
        layout, now_s = self._lead.layout, self._lead.now_s()
        observed = Observed(layout, self._rates, sharing_consumers, self.history, now_s, other_consumers)
        self.history = advance_history(self.history, observed, policy)
        return decide(replace(observed, history=self.history), policy)

    async def store_history(self) -> None:
        """Store the history if it changed, so that an idle topic does not write at every look."""
        new = self.history.to_json()
        if new != self._lead.record.history:
            await self._lead.update(lambda record: msgspec.structs.replace(record, history=new))

    def note(self, decision: Decision, outcome: str) -> None:
        """Keep a decision for operators. Repeated decisions to do nothing are counted, not listed."""
        now_ms = self._lead.context.clock.wall_ms()
        look = {
            "firstMs": now_ms,
            "lastMs": now_ms,
            "count": 1,
            "action": describe_action(decision),
            "reason": decision.reason,
            "against": list(decision.against),
            "lookAgainSeconds": decision.look_again_s,
            "outcome": outcome,
        }
        last = self.looks[-1] if self.looks else None
        if last is not None and last["outcome"] == outcome == "" and last["reason"] == decision.reason:
            look |= {"firstMs": last["firstMs"], "count": last["count"] + 1}
            self.looks.pop()
        self.looks.append(look)
        del self.looks[:-DECISIONS_KEPT]


def rates_of(segment: Segment, load: SegmentLoad, now_s: float) -> SegmentRates:
    """Return the load of a segment in the form that auto-scaling uses."""
    return SegmentRates(
        load.msg_rate_in,
        load.bytes_rate_in,
        load.msg_rate_out,
        load.bytes_rate_out,
        now_s,
        load.traffic.ring_weights(segment.range),
        load.traffic.bucket_weights(),
        load.traffic.hot,
    )


def describe_action(decision: Decision) -> str:
    words = []
    for action in (decision.action, *decision.then):
        if isinstance(action, Split):
            words.append(f"split {action.segment} at {', '.join(map(str, action.points))}")
        elif isinstance(action, Merge):
            words.append(f"merge {', '.join(map(str, action.segments))}")
        elif isinstance(action, Rebucket):
            words.append(f"rebucket {action.segment} into {len(action.splits) + 1}")
        else:
            words.append("keep")
    return "; ".join(words)
