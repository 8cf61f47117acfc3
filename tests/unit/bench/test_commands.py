"""`anabranch bench` refuses options that make no sense before it connects to a broker."""

from __future__ import annotations

import pytest

from anabranch.cli.main import main


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("publish t --size 9-3", "--size 9-3: the first number must not exceed the second"),
        ("publish t --keys -1", "--keys is -1"),
        ("publish t --keys 0 --key-distribution zipf", "--key-distribution zipf needs keys"),
        ("publish t --key-distribution normal", "key-distribution"),
        ("publish t --rate 0", "--rate is 0; it takes a number above 0"),
        ("publish t --rate nan", "--rate is nan"),
        ("publish t --duration -1", "--duration is -1"),
        ("publish t --interval 0", "--interval is 0"),
        ("publish t --count 0", "--count is 0; it takes a number of at least 1"),
        ("publish t --producers 0", "--producers is 0"),
        ("publish t --in-flight 0", "--in-flight is 0"),
        ("publish t --bulk 0", "--bulk is 0"),
        ("publish t --batch-messages 0", "--batch-messages is 0"),
        ("publish t --batch-delay -1", "--batch-delay is -1"),
        ("publish t --no-batching --batch-bytes 5", "--no-batching contradicts"),
        ("publish t --compression gzip", "compression"),
        ("consume t --consumers 0", "--consumers is 0"),
        ("consume t --timeout 0", "--timeout is 0"),
        ("consume t --type checkpoint --subscription s", "a checkpoint consumer has no subscription"),
        ("latency t --size 15", "a value needs 16 bytes"),
        ("latency t --consumers 0", "--consumers is 0"),
        ("latency", "TOPIC is missing"),
    ],
)
def test_nonsense_is_refused(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", *words.split(), "--url", "pulsar://127.0.0.1:1"])
    assert left.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_broker_that_cannot_be_reached_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "publish", "t", "--url", "pulsar://127.0.0.1:1"]) == 1
    assert "cannot reach a broker at pulsar://127.0.0.1:1" in capsys.readouterr().err
