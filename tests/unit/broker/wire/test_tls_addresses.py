"""Addresses over TLS: in lookups, layouts and the admin API, and those that brokers use among themselves."""

from __future__ import annotations

from typing import cast

import pytest

from anabranch.broker.cluster.cluster_secret import ClusterSecret
from anabranch.broker.cluster.endpoint import PeerTls
from anabranch.broker.cluster.peers import Peers
from anabranch.broker.engine.port import Engine, LogAddress, LogLocation
from anabranch.broker.wire.handlers.layout_watch import dag_of
from anabranch.client.net.topics.layout_watch import layout_from_wire
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, look_up

NAME = TopicName.parse("topic://public/default/t")
BOTH = BrokerRecord(
    id=0,
    url="pulsar://a:1",
    http_url="http://a:2",
    generation=1,
    url_tls="pulsar+ssl://a:3",
    http_url_tls="https://a:4",
)
TLS_ONLY = BrokerRecord(
    id=0, url="", http_url="", generation=1, url_tls="pulsar+ssl://a:3", http_url_tls="https://a:4"
)
PLAIN_ONLY = BrokerRecord(id=0, url="pulsar://a:1", http_url="http://a:2", generation=1)

tls_ports = pytest.mark.brokers(
    tls_port=6651, https_port=8443, tls_certificate_file="certificate", tls_key_file="key"
)


class OneServer:
    """An engine whose logs are all at one broker."""

    def __init__(self, broker: BrokerRecord) -> None:
        self._address = LogAddress(broker.url, broker.url_tls)

    def locate(self, topic: TopicName, segment: Segment) -> LogLocation:
        return LogLocation(self._address)


def dag(broker: BrokerRecord, *, tls: bool) -> pb.ScalableTopicDAG:
    layout = Layout(1, 1, {0: Segment(0, HashRange(0, 0xFFFF))})
    return dag_of(layout, NAME, cast(Engine, OneServer(broker)), broker, tls=tls)


@tls_ports
async def test_a_lookup_names_both_addresses(brokers: Brokers) -> None:
    client = await brokers.connect()
    found = await client.request(pb.CommandLookupTopic(topic=TOPIC, request_id=0))
    assert found.brokerServiceUrl == "pulsar://broker-0:6650"
    assert found.brokerServiceUrlTls == "pulsar+ssl://broker-0:6651"
    layout = (await look_up(client)).dag
    assert layout.segment_brokers[0].broker_url_tls == "pulsar+ssl://broker-0:6651"
    assert layout.controller_broker_url_tls == "pulsar+ssl://broker-0:6651"


def test_a_client_that_came_by_tls_gets_no_plain_address_of_the_leader() -> None:
    plain, tls = dag(BOTH, tls=False), dag(BOTH, tls=True)
    assert (plain.controller_broker_url, plain.controller_broker_url_tls) == (BOTH.url, BOTH.url_tls)
    assert (tls.HasField("controller_broker_url"), tls.controller_broker_url_tls) == (False, BOTH.url_tls)
    assert tls.segment_brokers[0].broker_url_tls == BOTH.url_tls
    assert not dag(PLAIN_ONLY, tls=False).segment_brokers[0].HasField("broker_url_tls")


@pytest.mark.parametrize(
    ("broker", "tls", "expected"),
    [
        (BOTH, False, BOTH.url),
        (BOTH, True, BOTH.url_tls),
        (TLS_ONLY, True, TLS_ONLY.url_tls),
        (TLS_ONLY, False, None),
        (PLAIN_ONLY, True, None),
    ],
)
def test_a_client_uses_only_addresses_of_its_kind(
    broker: BrokerRecord, tls: bool, expected: str | None
) -> None:
    update = pb.CommandScalableTopicUpdate(session_id=1, dag=dag(broker, tls=tls))
    found = layout_from_wire(update, NAME, tls=tls)
    assert (found.owners.get(0), found.controller_url) == (expected, expected)


@pytest.mark.parametrize(
    ("broker", "preferred", "expected"),
    [
        (BOTH, False, BOTH.url),
        (BOTH, True, BOTH.url_tls),
        (TLS_ONLY, False, TLS_ONLY.url_tls),
        (PLAIN_ONLY, True, PLAIN_ONLY.url),
    ],
)
def test_brokers_call_each_other_over_tls_if_they_have_to_or_want_to(
    broker: BrokerRecord, preferred: bool, expected: str
) -> None:
    def context() -> object:
        raise AssertionError("no connection is made")

    peers = Peers(cast(ClusterSecret, None), PeerTls(context, preferred))  # type: ignore[arg-type]
    assert peers.url_of(broker) == expected
    assert Peers(cast(ClusterSecret, None)).url_of(BOTH) == BOTH.url
