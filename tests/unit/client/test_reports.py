"""The client reports the loss and the return of a broker once each, and names segments that refuse."""

from __future__ import annotations

import asyncio
import logging

import pytest

from anabranch import AsyncClient
from anabranch.client.decide.connecting.outages import REPORTS_MAX, BrokerOutages
from anabranch.errors import PersistenceError
from tests.harness.cluster import HOST, PORT, TOPIC, Brokers

BROKER = f"{HOST}:{PORT}"


class Lines:
    """The lines that the client logged at INFO and above."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "anabranch.client")
        self._caplog = caplog

    def take(self) -> list[tuple[str, str]]:
        """Level and text of each line since the last call."""
        found = [
            (record.levelname, record.message)
            for record in self._caplog.records
            if record.name == "anabranch.client" and record.levelno >= logging.INFO
        ]
        self._caplog.clear()
        return found


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


async def use_everything(client: AsyncClient) -> None:
    """Open several producers and consumers on several segments."""
    for topic in (TOPIC, "other"):
        producer = await client.create_producer(topic)
        await producer.send_many([b"x"] * 20, keys=[f"k{n}" for n in range(20)])
        await client.subscribe_stream(topic, "s", initial_position="earliest")
        await client.subscribe_queue(topic, "q")
        await client.create_checkpoint_consumer(topic)


@pytest.mark.parametrize("away", ["killed", "stopped"])
async def test_loss_and_return_of_a_broker_are_one_line_each(
    brokers: Brokers, lines: Lines, away: str
) -> None:
    async with brokers.client(keep_alive_interval=5.0) as client:
        await use_everything(client)
        await (await brokers.controller()).split(0)
        await asyncio.sleep(1.0)
        assert lines.take() == []
        if away == "killed":
            brokers.kill()
            await asyncio.sleep(60.0)
            await brokers.start()
        else:
            brokers.processes[0].pause()
            await asyncio.sleep(60.0)
            brokers.processes[0].resume()
        await asyncio.sleep(10.0)
        (lost, back) = lines.take()
        assert lost[0] == "WARNING"
        assert f"broker {BROKER}: " in lost[1]
        assert lost[1].endswith("; the client retries")
        assert back[0] == "INFO"
        assert back[1].startswith(f"broker {BROKER} is back after ")
        assert 40 < float(back[1].split()[-2]) < 65


async def test_a_broker_that_is_not_there_at_first_is_one_line_too(brokers: Brokers, lines: Lines) -> None:
    brokers.kill()
    async with brokers.client() as client:
        opening = asyncio.ensure_future(client.create_producer(TOPIC))
        await asyncio.sleep(10.0)
        await brokers.start()
        await opening
        (lost, back) = lines.take()
        assert lost[1].startswith(f"cannot connect to broker {BROKER}: ")
        assert back[1].startswith(f"broker {BROKER} is back after ")


def test_a_connection_that_breaks_again_and_again_does_not_fill_the_log() -> None:
    outages = BrokerOutages()
    reported = 0
    for second in range(50):
        reported += outages.failed(float(second))
        assert not outages.failed(second + 0.1), "one line for each outage"
        assert (outages.returned(second + 0.5) is not None) == (second < REPORTS_MAX)
    assert reported == REPORTS_MAX
    assert outages.failed(200.0)


async def test_a_segment_that_another_consumer_holds_is_named_once(brokers: Brokers, lines: Lines) -> None:
    await brokers.publish(8, 1)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        held = await first.receive_many(100, timeout=1)
        await two.subscribe_stream(TOPIC, "s", name="b")
        await asyncio.sleep(4.0)
        assert lines.take() == []
        await asyncio.sleep(26.0)
        segment = "segment://public/default/orders/0000-ffff-0"
        (refused, asked) = lines.take()
        assert refused[0] == "WARNING"
        assert refused[1].startswith(f"{segment} at {BROKER} refuses: ")
        assert asked == (
            "WARNING",
            f"{segment}: acknowledge its messages so that another consumer can read it",
        )
        await first.acknowledge_cumulative(held[-1])
        await asyncio.sleep(5.0)
        (fine,) = lines.take()
        assert fine[0] == "INFO"
        assert fine[1].startswith(f"{segment} at {BROKER} is fine again after 3")


async def test_a_segment_that_refuses_entries_is_named_and_not_asked_without_a_pause(
    brokers: Brokers, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"x", key="a")
        log = brokers[0].stores.get("segment://public/default/orders/0000-ffff-0")
        assert log is not None
        refusals = 0

        def refuse(*_: object, **__: object) -> None:
            nonlocal refusals
            refusals += 1
            raise PersistenceError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append", refuse)
            waiting = await producer.enqueue(b"y", key="a")
            await asyncio.sleep(20.0)
            (refused,) = lines.take()
            assert refused[0] == "WARNING"
            assert "orders/0000-ffff-0 at broker-0:6650 refuses: the disk is full" in refused[1]
            assert refusals < 40
        await waiting
        (fine,) = lines.take()
        assert fine[0] == "INFO"
