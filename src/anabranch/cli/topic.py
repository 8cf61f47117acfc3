"""`anabranch topic ...` and `anabranch brokers`: operators' commands over the admin API."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.cli import dag
from anabranch.cli.lane import hot_key_lines, lane_text
from anabranch.cli.role import role_of
from anabranch.errors import InvalidConfigurationError, InvalidNameError
from anabranch.model.names import TopicName


def run(arguments: argparse.Namespace) -> int:
    with role_of(arguments, os.environ).open_admin() as admin:
        if arguments.action == "brokers":
            _list_brokers(admin, arguments)
        elif arguments.action == "list":
            _list(admin, arguments)
        else:
            name = TopicName.parse(arguments.topic, default_domain="topic")
            if not name.is_scalable:
                raise InvalidNameError(f"{name} is not a scalable topic; its name begins with topic://")
            _ACTIONS[arguments.action](admin, name, arguments)
    return 0


def _list(admin: AdminClient, arguments: argparse.Namespace) -> None:
    topics = admin.list_topics(arguments.namespace, _properties(arguments.property))
    if arguments.json:
        print(json.dumps(topics))
        return
    for topic in topics:
        print(topic)
    if not topics and sys.stdout.isatty():
        print(f"namespace {arguments.namespace} has no topics; make one with `anabranch topic create NAME`")


def _list_brokers(admin: AdminClient, arguments: argparse.Namespace) -> None:
    brokers = plain(admin.brokers())
    if arguments.json:
        print(json.dumps(brokers))
        return
    for broker in brokers:
        name = "no broker" if broker["id"] is None else f"broker {broker['id']}"
        where = " ".join(filter(None, (broker["serviceUrl"], broker["webServiceUrl"])))
        stores = ", ".join(map(str, broker["stores"])) or "none"
        print("  ".join(filter(None, (name, where, f"stores {stores}"))))


def _create(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    admin.create_topic(name, arguments.segments, _properties(arguments.property))
    print(f"created {name} with {_count(arguments.segments, 'segment')}")


def _properties(texts: list[str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidConfigurationError(f"--property {text!r}: write it as key=value")
        if properties.setdefault(key, value) != value:
            raise InvalidConfigurationError(f"--property {key} is given twice, with different values")
    return properties


def _delete(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    admin.delete_topic(name, force=arguments.force)
    print(f"deleted {name}")


def _migrate(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    admin.migrate(name, force=arguments.force)
    segments = plain(admin.topic_metadata(name))["segments"].values()
    active = sum(segment["state"] == "ACTIVE" for segment in segments)
    print(f"migrated {name} to {_count(active, 'segment')}")


def _split(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    points = _slots("--points", arguments.points)
    admin.split(
        name, arguments.segment, points=points, parts=arguments.parts, by_traffic=arguments.by_traffic
    )
    print(f"split segment {arguments.segment} into {_children(admin, name, arguments.segment)}")


def _merge(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    admin.merge(name, arguments.segments)
    child = _children(admin, name, arguments.segments[0])
    print(f"merged segments {', '.join(map(str, arguments.segments))} into {child}")


def _rebucket(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    boundaries = _slots("--boundaries", arguments.boundaries)
    admin.rebucket(
        name,
        arguments.segment,
        bucket_count=arguments.buckets,
        boundaries=boundaries,
        by_traffic=arguments.by_traffic,
    )
    buckets = arguments.buckets or len(boundaries) + 1
    child = _children(admin, name, arguments.segment)
    print(f"replaced segment {arguments.segment} by {child} with {_count(buckets, 'bucket')}")


def _children(admin: AdminClient, name: TopicName, segment: int) -> str:
    segments = plain(admin.topic_metadata(name))["segments"]
    found = [segments[str(id_)] for id_ in segments[str(segment)]["childIds"]]
    return ", ".join(
        f"{child['segmentId']} ({child['hashRange']['start']:04x}-{child['hashRange']['end']:04x})"
        for child in found
    )


def _slots(option: str, text: str | None) -> list[int]:
    try:
        return [int(part, 0) for part in text.split(",")] if text else []
    except ValueError:
        raise InvalidConfigurationError(
            f"{option} {text!r}: write slots between 1 and 65535 separated by commas, like 0x4000,0x8000"
        ) from None


def _show(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    metadata, stats = plain(admin.topic_metadata(name)), plain(admin.topic_stats(name))
    if arguments.json:
        print(json.dumps({"metadata": metadata, "stats": stats}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    nodes = dag.nodes_of(metadata, stats)
    active = sum(node.active for node in nodes)
    console.print(
        f"[bold]{name}[/]   epoch {metadata['epoch']}, {_count(active, 'active segment')}, "
        f"{len(nodes) - active} sealed"
    )
    picture = dag.draw(nodes, metadata["epoch"], min(console.width, 120))
    if picture is not None:
        console.print()
        for line in picture:
            console.print(Text.assemble(*line), no_wrap=True, crop=True)
    head, rows = dag.table(nodes)
    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns:
        column.no_wrap = column.header not in ("from", "to")
    for column in table.columns[5:]:
        column.justify = "right"
    for node, row in zip(nodes, rows, strict=True):
        table.add_row(*row, style="" if node.active else "dim")
    console.print(table)
    for subscription, figures in stats.get("subscriptions", {}).items():
        console.print(_subscription_line(subscription, figures))
    intent = metadata.get("intent")
    if intent:
        console.print(f"[yellow]under way:[/] {intent['kind']}, begun in term {intent['term']}")


def _subscription_line(name: str, figures: dict[str, Any]) -> str:
    parts = [f"subscription {name}"]
    if figures.get("type"):
        parts.append(str(figures["type"]).lower())
    parts.append(_count(figures["consumerCount"], "consumer"))
    if figures.get("backlog") is not None:
        parts.append(f"backlog {figures['backlog']:,}")
    if figures.get("lanes"):
        parts.append(f"{figures['laneMessages']:,} of it in {_count(figures['lanes'], 'lane')}")
    return ", ".join(parts)


def _why(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> None:
    answer = plain(admin.why(name))
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return
    for line in state_lines(answer):
        print(line)
    decisions = answer.get("decisions", [])
    if not decisions:
        print("auto-scaling has not checked this topic yet")
    for decision in decisions:
        print(_decision_text(decision))
    for subscription, state in answer.get("subscriptions", {}).items():
        for line in waiting_lines(subscription, state):
            print(line)
    for line in hot_key_lines(answer.get("hotKeys", {})):
        print(line)
    for subscription, lanes in answer.get("lanes", {}).items():
        for lane in lanes:
            print(f"subscription {subscription}: {lane_text(lane, time.time())}")


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
        lines.append(f"{_count(answer['waitingChanges'], 'change')} in the queue")
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
    times = f" (for the {decision['count']}. time)" if decision["count"] > 1 else ""
    lines = [f"{when}  {decision['action']}{times}: {decision['reason']}"]
    lines += [f"    why not {reason}" for reason in decision["against"]]
    if decision["outcome"]:
        lines.append(f"    {decision['outcome']}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_ACTIONS: dict[str, Callable[[AdminClient, TopicName, argparse.Namespace], None]] = {
    "create": _create,
    "delete": _delete,
    "merge": _merge,
    "migrate": _migrate,
    "rebucket": _rebucket,
    "show": _show,
    "split": _split,
    "why": _why,
}
