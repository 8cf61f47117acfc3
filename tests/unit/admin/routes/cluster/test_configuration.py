"""Settings that change while brokers run: at once, at all brokers, and after a restart."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.config.dynamic import DYNAMIC
from anabranch.metadata.configuration import ConfigurationStore
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.wire import error_of, settle

PATH = "/admin/v2/brokers/configuration"


def test_the_settings_that_can_change_are_listed_and_shown(admin: Admin) -> None:
    assert admin("GET", PATH).json == sorted(DYNAMIC)
    assert admin("POST", f"{PATH}/maxProducersPerTopic/7").status == 204
    assert admin("GET", f"{PATH}/values").json == {"maxProducersPerTopic": "7"}
    admin.loop.run(settle())
    assert admin("GET", f"{PATH}/runtime").json["maxProducersPerTopic"] == "7"
    assert admin("DELETE", f"{PATH}/maxProducersPerTopic").status == 204
    admin.loop.run(settle())
    assert admin("GET", f"{PATH}/values").json == {}
    assert admin("GET", f"{PATH}/runtime").json["maxProducersPerTopic"] == "0"


def test_the_internal_configuration_names_the_metadata_store_and_no_bookkeeper(admin: Admin) -> None:
    assert admin("GET", "/admin/v2/brokers/internal-configuration").json == {
        "metadataStoreUrl": "memory:",
        "configurationMetadataStoreUrl": "memory:",
        "ledgersRootPath": None,
        "bookkeeperMetadataServiceUri": None,
        "stateStorageServiceUrl": None,
    }


@pytest.mark.parametrize(
    "change", ["maxProducersPerTopic/many", "maxProducersPerTopic/-1", "allowAutoTopicCreation/7", "port/1"]
)
def test_a_value_that_cannot_be_is_refused(admin: Admin, change: str) -> None:
    assert admin("POST", f"{PATH}/{change}").status == 412
    assert admin("GET", f"{PATH}/values").json == {}


@pytest.mark.brokers(count=2)
async def test_a_limit_holds_at_every_broker_and_after_its_restart(admin: Admin) -> None:
    async def second_producer() -> object:
        one, two = await admin.brokers.connect(1), await admin.brokers.connect(1)
        topic = "non-persistent://public/default/x"
        await one.producer(topic)
        answer = await two.producer(topic)
        for client in (one, two):
            client.close()
        await settle()
        return answer

    assert isinstance(await second_producer(), pb.CommandProducerSuccess)
    assert (await admin.ask("POST", f"{PATH}/maxProducersPerTopic/1", None)).status == 204
    await settle()
    assert error_of(await second_producer()) == pb.ProducerBusy
    await admin.brokers.restart(1)
    assert error_of(await second_producer()) == pb.ProducerBusy


async def test_topics_are_no_longer_made_by_use_once_that_is_switched_off(admin: Admin) -> None:
    client = await admin.brokers.connect()
    assert (await admin.ask("POST", f"{PATH}/allowAutoTopicCreation/false", None)).status == 204
    await settle()
    assert error_of(await client.producer()) == pb.TopicNotFound


async def test_producers_are_opened_again_when_deduplication_changes(admin: Admin) -> None:
    client = await admin.brokers.connect()
    await client.producer()
    assert (await admin.ask("POST", f"{PATH}/brokerDeduplicationEnabled/false", None)).status == 204
    await client.expect(pb.CommandCloseProducer)


async def test_a_stored_value_that_fits_no_more_does_not_stop_a_broker(admin: Admin) -> None:
    await ConfigurationStore(admin.broker.records.store).set("maxProducersPerTopic", "-5")
    await admin.brokers.restart()
    await asyncio.sleep(1)
    assert admin.brokers[0].quotas.book.config.max_producers_per_topic == 0
