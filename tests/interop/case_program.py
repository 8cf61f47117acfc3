"""A program on an official client of another language, which tries one feature per line that it is given."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from simulation.harness.process import BrokerProcess
from tests.interop.features import RsaKeys, new_topic
from tests.interop.other_side import fulfil


class CaseProgram:
    """Runs cases one after the other; the program may ask this side for something meanwhile."""

    def __init__(self, command: list[str], broker: BrokerProcess, keys: RsaKeys, log: Path) -> None:
        self._broker, self._keys, self._log = broker, keys, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def run(self, case: str, scheme: str = "persistent") -> None:
        """Try one feature on a topic of its own; AssertionError with the error of the program."""
        topic = new_topic(case.replace(" ", "-"), scheme)
        answer = self._ask(
            {
                "case": case,
                "url": self._broker.url,
                "http": self._broker.http_url,
                "topic": topic,
                "public": str(self._keys.public),
                "private": str(self._keys.private),
            }
        )
        while wish := answer.get("ask"):
            fulfil(wish, topic, self._broker, self._keys)
            answer = self._ask({})
        assert answer["error"] == "", f"{case}: {answer['error']}\n{self._log.read_text()[-1500:]}"

    def _ask(self, line: dict[str, str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        text = self._process.stdout.readline()
        assert text, f"the program ended:\n{self._log.read_text()[-1500:]}"
        answer: dict[str, Any] = json.loads(text)
        return answer

    def close(self) -> None:
        """End the program, also after a failure."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
