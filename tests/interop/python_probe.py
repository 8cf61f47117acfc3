"""Uses the official Python client with credentials: a case per line in, an outcome per line out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pulsar


def credentials(case: dict[str, Any]) -> Any:
    """Return the client's object for the method and the parameters of a case."""
    params = case["params"]
    match case["method"]:
        case "none":
            return None
        case "token":
            return pulsar.AuthenticationToken(lambda: Path(params["file"]).read_text())
        case "tls":
            return pulsar.AuthenticationTLS(params["certificate"], params["key"])
        case "basic":
            return pulsar.AuthenticationBasic(params["user"], params["password"])
        case "oauth2":
            form = {
                "type": "client_credentials",
                "issuer_url": params["issuer"],
                "audience": params["audience"],
                "private_key": params["key_file"].removeprefix("file://"),
            }
            return pulsar.AuthenticationOauth2(json.dumps(form))
        case unknown:
            raise ValueError(f"no such method: {unknown}")


class ProbedCase:
    """One case; `received` counts its messages."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.received = 0
        self._case = case

    def run(self) -> None:
        client = pulsar.Client(
            self._case["url"],
            authentication=credentials(self._case),
            tls_trust_certs_file_path=self._case["trust"] or None,
            tls_validate_hostname=True,
            operation_timeout_seconds=self._case["timeout_s"],
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            self._exchange(client)
        finally:
            client.close()

    def _exchange(self, client: Any) -> None:
        topic, seconds = self._case["topic"], self._case["seconds"]
        timeout_ms = self._case["timeout_s"] * 1000
        consumer = client.subscribe(topic, self._case["subscription"], pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, send_timeout_millis=timeout_ms)
        end = time.monotonic() + seconds
        while self.received < 10 or time.monotonic() < end:
            producer.send(b"value", partition_key="key")
            consumer.acknowledge(consumer.receive(timeout_millis=timeout_ms))
            self.received += 1
            if seconds:
                time.sleep(0.1)


def main() -> None:
    for line in sys.stdin:
        probe = ProbedCase(json.loads(line))
        error = ""
        try:
            probe.run()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"received": probe.received, "error": error}), flush=True)


if __name__ == "__main__":
    main()
