"""The ports of workers."""

from __future__ import annotations

import pytest

from anabranch.config.broker import BrokerConfig
from anabranch.config.files import load_config
from anabranch.errors import InvalidConfigurationError
from anabranch.server.listening import own_ports


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ({"pulsar": 6650, "http": 8080}, {"pulsar": [6651, 6652], "http": [8081, 8082]}),
        ({"pulsar": 6650, "pulsar+ssl": 6651}, {"pulsar": [6652, 6653], "pulsar+ssl": [6654, 6655]}),
        ({"pulsar": 0, "https": 8443}, {"pulsar": [0, 0], "https": [8444, 8445]}),
    ],
)
def test_workers_have_the_next_free_ports(shared: dict[str, int], expected: dict[str, list[int]]) -> None:
    assert own_ports(shared, 2) == expected


def test_a_port_is_switched_off_with_an_empty_value_as_in_pulsar() -> None:
    tls = ["brokerServicePortTls=6651", "tlsCertificateFilePath=c", "tlsKeyFilePath=k"]
    config = load_config(None, ["brokerServicePort=", *tls])
    assert (config.port, config.tls_port, config.has_tls) == (-1, 6651, True)
    assert load_config(None, ["webServicePortTls="]) == BrokerConfig()


@pytest.mark.parametrize("name", ["port", "http_port"])
def test_a_broker_has_at_least_one_port_of_each_kind(name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="switch on"):
        load_config(None, [f"{name}="])
