"""Sentences of `anabranch topic show` and `topic why`. Pure: the JSON of the admin API in, lines out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from anabranch.cli.topics.lane_text import hot_key_lines, lane_text, size_text
from anabranch.errors import counted
from anabranch.model.names import TopicName


def why_lines(answer: dict[str, Any], now_s: float) -> list[str]:
    """Everything that `anabranch topic why` says about a topic."""
    lines = state_lines(answer)
    decisions = answer.get("decisions", [])
    if not decisions:
        lines.append("auto-scaling has not checked this topic yet")
    lines += [_decision_text(decision) for decision in decisions]
    for subscription, state in answer.get("subscriptions", {}).items():
        lines += waiting_lines(subscription, state)
    lines += hot_key_lines(answer.get("hotKeys", {}))
    for subscription, lanes in answer.get("lanes", {}).items():
        lines += [f"subscription {subscription}: {lane_text(lane, now_s)}" for lane in lanes]
    return lines


def state_lines(answer: dict[str, Any]) -> list[str]:
    """Describe the operations of a topic and their troubles; no line when it is idle."""
    lines = []
    operation = answer.get("operation")
    if operation is not None:
        parents = ", ".join(str(id_) for step in operation["steps"] for id_ in step["parentIds"])
        of = f" of segment {parents}" if parents else ""
        phase = f"; {operation['phase']}" if operation["phase"] else ""
        lines.append(f"under way: {operation['kind']}{of}, {operation['reason']}{phase}")
    if answer.get("waitingChanges"):
        lines.append(f"{counted(answer['waitingChanges'], 'change')} in the queue")
    lines += [f"trouble with {what}: {text}" for what, text in answer.get("troubles", {}).items()]
    if answer.get("garbage"):
        lines.append(f"still to be deleted: {', '.join(answer['garbage'])}")
    return lines


def waiting_lines(subscription: str, state: dict[str, Any]) -> list[str]:
    """Describe what a subscription waits for; no line when it reads every segment."""
    lines = []
    if state.get("unfinished"):
        lines.append(f"{state['unfinished']} is not complete on all segments yet")
    if state.get("trouble"):
        lines.append(str(state["trouble"]))
    for segment, reason in state.get("unreached", {}).items():
        lines.append(f"the owner of segment {segment} has no roster yet: {reason}")
    for name, member in state.get("consumers", {}).items():
        if member["segments"] and member["evictedInSeconds"] is not None:
            kept_s = member["evictedInSeconds"]
            lines.append(f"{name} is disconnected and keeps its segments for {kept_s:.0f} s more")
    for segment, blockers in state.get("waiting", {}).items():
        for blocker in blockers:
            whole = blocker["buckets"] == ["0000-ffff"]
            what = "" if whole else f"buckets {', '.join(blocker['buckets'])} of "
            readers = ", ".join(blocker["consumers"]) or "no consumer"
            lines.append(f"segment {segment} waits for {what}segment {blocker['segment']}, read by {readers}")
    return [f"subscription {subscription}: {line}" for line in lines]


def _decision_text(decision: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(decision["lastMs"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    times = f" ({decision['count']} times in a row)" if decision["count"] > 1 else ""
    lines = [f"{when}  {decision['action']}{times}: {decision['reason']}"]
    lines += [f"    why not {reason}" for reason in decision["against"]]
    if decision["outcome"]:
        lines.append(f"    {decision['outcome']}")
    return "\n".join(lines)


def subscription_line(name: str, figures: dict[str, Any]) -> str:
    """One subscription of a scalable topic in one line."""
    parts = [f"subscription {name}"]
    if figures.get("type"):
        parts.append(str(figures["type"]).lower())
    parts.append(counted(figures["consumerCount"], "consumer"))
    if figures.get("backlog") is not None:
        parts.append(f"backlog {figures['backlog']:,}")
    if figures.get("lanes"):
        parts.append(f"{figures['laneMessages']:,} of it in {counted(figures['lanes'], 'lane')}")
    return ", ".join(parts)


def ranges_text(children: list[dict[str, Any]]) -> str:
    """Segments with the ranges of their slots."""
    return ", ".join(f"{one['segment']} ({one['start']:04x}-{one['end']:04x})" for one in children)


def classic_lines(name: str, stats: dict[str, Any], successor: TopicName | None) -> list[str]:
    """A classic topic, its partitions and subscriptions, and the scalable topic that it was migrated to."""
    parts = stats.get("partitions", {})
    kind = counted(len(parts), "partition") if parts else "not partitioned"
    producers = counted(len(stats.get("publishers", [])), "producer")
    lines = [f"{name}   classic, {kind}, {_log_text(stats)}, {producers}"]
    lines += [f"  {part}: {_log_text(figures)}" for part, figures in parts.items()]
    lines += [
        f"subscription {subscription}, {str(figures.get('type') or 'unused').lower()}, "
        f"{counted(len(figures.get('consumers', [])), 'consumer')}, backlog {figures.get('msgBacklog', 0):,}"
        for subscription, figures in stats.get("subscriptions", {}).items()
    ]
    if successor is not None:
        lines.append(f"migrated: `anabranch topic show {successor}` draws its segments")
    return lines


def _log_text(stats: dict[str, Any]) -> str:
    messages = stats.get("msgInCounter", 0)
    noun = "message" if messages == 1 else "messages"
    return f"{messages:,} {noun} in, {size_text(stats.get('storageSize', 0))} stored"
