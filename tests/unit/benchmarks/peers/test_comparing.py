"""How the benchmarks judge our clients against their peers."""

from __future__ import annotations

import pytest

from benchmarks.peers.comparing import Goal, blocking_beside_async, rows_of

ASYNC, BLOCKING, KAFKA, PULSAR = "anabranch, async", "anabranch, blocking", "confluent-kafka", "pulsar-client"


@pytest.mark.parametrize(("ours", "met"), [(200.0, True), (199.9, False)])
def test_a_rate_is_judged_against_the_fastest_peer(ours: float, met: bool) -> None:
    (row,) = rows_of("publish", "msg/s", {ASYNC: ours, KAFKA: 100.0, PULSAR: 50.0}, Goal(2.0))
    assert (row.name, row.peer_name, row.peer) == (f"publish: {ASYNC}", KAFKA, 100.0)
    assert (row.ratio, row.met, row.goal) == (ours / 100, met, "ratio at least 2")
    assert row.series == {KAFKA: 100.0, PULSAR: 50.0}


@pytest.mark.parametrize(("ours", "met"), [(2.0, True), (2.1, False)])
def test_a_latency_is_judged_against_the_lowest_of_the_peers_that_count(ours: float, met: bool) -> None:
    goal = Goal(1.0, lambda name: name == KAFKA)
    (row,) = rows_of("end to end", "ms", {ASYNC: ours, KAFKA: 2.0, PULSAR: 1.0}, goal)
    assert (row.peer_name, row.met, row.goal) == (KAFKA, met, "ratio at most 1")
    assert row.series == {KAFKA: 2.0, PULSAR: 1.0}


def test_without_a_peer_nothing_is_judged() -> None:
    rows = rows_of("publish", "msg/s", {ASYNC: 1.0, BLOCKING: 2.0}, Goal(2.0))
    assert [(row.peer_name, row.peer, row.ratio, row.met) for row in rows] == [
        ("no peer", None, None, None)
    ] * 2


def test_each_of_our_clients_has_a_row_and_the_first_shows_the_peers() -> None:
    rows = rows_of("publish", "msg/s", {ASYNC: 4.0, BLOCKING: 2.0, PULSAR: 2.0}, Goal(2.0))
    assert [(row.ours, row.met) for row in rows] == [(4.0, True), (2.0, False)]
    assert [bool(row.series) for row in rows] == [True, False]


@pytest.mark.parametrize(("blocking", "met"), [(100.0, True), (99.0, False)])
def test_the_blocking_enqueue_needs_a_third_of_the_async_rate(blocking: float, met: bool) -> None:
    measured = rows_of("publish", "msg/s", {ASYNC: 300.0, BLOCKING: blocking, PULSAR: 1.0}, Goal(2.0))
    (row,) = blocking_beside_async(measured)
    assert (row.ours, row.peer_name, row.peer, row.met) == (blocking, ASYNC, 300.0, met)
