"""A backup of serving brokers, restored and verified."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

from anabranch import AsyncClient, Checkpoint, MessageId
from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.data.backup import back_up
from anabranch.data.restore import restore
from anabranch.errors import CorruptDataError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker
from .stored import check_stored, keys_over_the_ring

NAME = TopicName.parse("topic://public/default/orders")
KEYS = keys_over_the_ring(8)
QUIET = {"scalableTopicAutoScaleEnabled": "false"}


class KeyPublisher:
    """Publishes numbers to every key, one round after the other."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.rounds = 0
        self.ids: set[MessageId] = set()
        self._broker = broker

    async def run(self, rounds: int | None = None) -> None:
        async with AsyncClient(self._broker.url) as client:
            producer = await client.create_producer(str(NAME))
            for done in count():
                if done == rounds:
                    return
                value = str(self.rounds).encode()
                self.ids.update(await asyncio.gather(*(producer.send(value, key=key) for key in KEYS)))
                self.rounds += 1


async def split_often(broker: BrokerProcess) -> None:
    """Split each segment into two; ids are given in order, so every id is an active segment once."""
    with AdminClient(broker.http_url) as admin:
        for segment in count():
            await asyncio.to_thread(admin.split, NAME, segment)


async def read_all(broker: BrokerProcess) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    async with AsyncClient(broker.url) as client:
        consumer = await client.create_checkpoint_consumer(str(NAME), start=Checkpoint.earliest())
        while messages := await consumer.receive_many(1000, timeout=2.0):
            for message in messages:
                found[message.key or ""].append(int(message.data))
    return found


@pytest.mark.parametrize("workers", [1, 2])
async def test_backup_of_serving_brokers_has_all_that_was_stored_before_it(
    make_broker: MakeBroker, tmp_path: Path, workers: int
) -> None:
    broker = make_broker(workers=workers, journal_bytes_max=2**16, **QUIET).start()
    publisher = KeyPublisher(broker)
    await publisher.run(5)
    work = [asyncio.create_task(publisher.run()), asyncio.create_task(split_often(broker))]
    for number in range(3):
        stored = publisher.rounds
        await asyncio.to_thread(back_up, broker.data, tmp_path / f"backup-{number}")
        until = publisher.rounds + 5
        while publisher.rounds < until:
            await asyncio.sleep(0.01)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    assert broker.stop() == 0
    assert not (broker.data / "backup").exists()

    copy = make_broker("copy", workers=workers, **QUIET)
    await asyncio.to_thread(restore, tmp_path / "backup-2", copy.data)
    copy.start()
    for numbers in (found := await read_all(copy)).values():
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= stored
    assert set(found) == set(KEYS)
    later = KeyPublisher(copy)
    await later.run(5)
    assert publisher.ids.isdisjoint(later.ids), "an id was given to two messages"
    assert copy.stop() == 0
    await check_stored(copy.data)


async def test_backup_commands_tell_what_they_did(
    make_broker: MakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker(**QUIET).start()
    await KeyPublisher(broker).run(2)
    data, copy, backup = str(broker.data), str(tmp_path / "copy"), str(tmp_path / "backup")
    assert await asyncio.to_thread(main, ["store", "check", "--data", data]) == 1
    assert "in use by process" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["backup", backup, "--data", data]) == 0
    assert (broker.data / "stores" / "0" / "reserve").exists()
    assert not (tmp_path / "backup" / "stores" / "0" / "reserve").exists(), "the reserve is not data"
    assert await asyncio.to_thread(main, ["backup", backup, "--data", data]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["restore", backup, "--data", copy]) == 0
    assert capsys.readouterr().out.startswith(f"restored {copy} as of ")
    assert await asyncio.to_thread(main, ["store", "show", "--data", copy]) == 0
    assert "segment://public/default/orders/0000-ffff-0: 16 messages" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["store", "check", "--data", copy]) == 0
    assert "no damage" in capsys.readouterr().out


async def test_damaged_backup_is_refused_and_nothing_is_made(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker(**QUIET).start()
    await KeyPublisher(broker).run(1)
    back_up(broker.data, tmp_path / "backup")
    broker.stop()
    journal = next((tmp_path / "backup").glob("stores/0/journal/*"))
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    with pytest.raises(CorruptDataError, match="journal"):
        restore(tmp_path / "backup", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_damage_is_reported_by_check_and_mended_by_repair(
    make_broker: MakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker(**QUIET).start()
    await KeyPublisher(broker).run(2)
    broker.kill()
    (broker.data / "metadata.db").unlink()
    data = ["--data", str(broker.data)]
    assert await asyncio.to_thread(main, ["store", "check", *data]) == 1
    assert "metadata.db: the file is missing" in capsys.readouterr().out
    assert not (broker.data / "metadata.db").exists()
    assert await asyncio.to_thread(main, ["store", "repair", *data]) == 0
    assert await asyncio.to_thread(main, ["store", "check", "--json", *data]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["metadata"] == []
    catalog = broker.data / "stores/0/catalog"
    catalog.write_bytes(catalog.read_bytes()[:-1])
    broker.start()
    assert set(await read_all(broker)) == set(KEYS)
    with urlopen(f"{broker.http_url}/metrics") as answer:
        assert 'anabranch_store_damage{store="0",worker="0"} 1.0' in answer.read().decode()
