"""How a worker divides its file descriptors, and how it opens files when none is free."""

from __future__ import annotations

import errno

import pytest

from anabranch import descriptors
from anabranch.descriptors import HANDSHAKES, Demand, patiently, share

DEFAULT = Demand(connections=10_000, http_connections=1000, stores=1, workers=1)


def used(demand: Demand, limit: int) -> int:
    """The descriptors that all shares take together, without the fixed part of each process."""
    shares = share(limit, demand)
    files = shares.files_per_store * demand.stores
    return shares.connections + HANDSHAKES + shares.http_connections + files


def test_many_descriptors_are_enough_for_all() -> None:
    shares = share(20_000, DEFAULT)
    assert (shares.connections, shares.http_connections, shares.files_per_store) == (10_000, 1000, 256)


@pytest.mark.parametrize("limit", [256, 1024, 4096, 8192])
@pytest.mark.parametrize("stores", [1, 2, 8])
def test_the_shares_leave_a_reserve_for_the_process_itself(limit: int, stores: int) -> None:
    demand = Demand(10_000, 1000, stores, workers=stores)
    shares = share(limit, demand)
    least = shares.files_per_store == 8 and shares.connections == 16
    assert least or used(demand, limit) + 64 + 12 * stores <= limit
    assert shares.connections >= 16
    assert shares.http_connections >= 16
    assert shares.files_per_store >= 8


def test_a_smaller_demand_is_not_raised() -> None:
    shares = share(1024, Demand(connections=5, http_connections=3, stores=1, workers=1))
    assert (shares.connections, shares.http_connections) == (5, 3)


def test_most_of_few_descriptors_are_for_connections() -> None:
    assert share(1024, DEFAULT).connections > 600


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_file_without_a_descriptor_is_opened_once_there_is_room(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "RETRY_S", 0.0)
    failures = [code] * 3
    freed: list[int] = []

    def attempt() -> int:
        if failures:
            raise OSError(failures.pop(), "none left")
        return 7

    assert patiently(attempt, lambda: freed.append(len(failures))) == 7
    assert freed == [2]


def test_other_errors_are_those_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt() -> int:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        patiently(attempt)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "RETRY_S", 0.0)
    monkeypatch.setattr(descriptors, "PATIENCE_S", 0.01)

    def attempt() -> int:
        raise OSError(errno.EMFILE, "none left")

    with pytest.raises(OSError, match="none left"):
        patiently(attempt)
