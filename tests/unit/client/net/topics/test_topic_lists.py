"""The topics of a namespace, as a client lists them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.wire.handlers import lookup, names_watch
from anabranch.client.net.topics.topic_lists import list_scalable_topics
from anabranch.errors import AnabranchError
from tests.harness.cluster import Brokers


async def test_scalable_and_classic_topics_are_listed_apart(brokers: Brokers) -> None:
    async with brokers.client() as client:
        assert await client.topics("public/default") == []
        for name in ("b", "a", "persistent://public/default/d"):
            await (await client.create_producer(name)).send(b"1")
        assert await client.topics("public/default") == [
            "topic://public/default/a",
            "topic://public/default/b",
        ]
        assert "persistent://public/default/d" in await client.topics("public/default", classic=True)


async def test_a_list_too_long_for_one_command_is_complete(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = lookup.name_lists
    monkeypatch.setattr(names_watch, "name_lists", lambda names, bytes_max: lists(names, 60))
    async with brokers.client() as client:
        for number in range(5):
            await client.create_producer(f"t{number}")
        assert len(await client.topics("public/default")) == 5


async def test_a_missing_namespace_is_refused(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(AnabranchError, match="nowhere"):
            await client.topics("public/nowhere")


async def test_a_namespace_that_is_no_text_leaves_no_watch_behind() -> None:
    features = SimpleNamespace(supports_scalable_topics=True)
    connection = SimpleNamespace(machine=SimpleNamespace(server_features=features), watches={})

    async def any_connection() -> Any:
        return connection

    pool: Any = SimpleNamespace(any_connection=any_connection, next_id=lambda: 1)
    wrong: Any = 5
    with pytest.raises(TypeError):
        await list_scalable_topics(pool, wrong)
    assert not connection.watches
