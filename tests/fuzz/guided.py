"""Coverage-guided fuzzing: `python -m tests.fuzz.guided TARGET [options]`.

The targets are decoders, recovery of a store, and bodies of REST calls. The options are libFuzzer's, for
instance `-max_total_time=60`, or the file of an input to replay. libFuzzer writes an input that does harm to
the folder `build/fuzz` and exits with an error.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["anabranch"]):
    from anabranch.admin.routes.table import ENDPOINTS
    from anabranch.errors import AnabranchError, CorruptDataError
    from anabranch.ledger.storage import SegmentStorage
    from anabranch.model.checkpoint import Checkpoint
    from anabranch.model.ids import MessageId
    from anabranch.protocol.frames import build_entry
    from simulation.world.loop import SimLoop
    from tests.fakes.disk import DictDisk
    from tests.fuzz.decoders import FuzzError, read_entry, read_stream
    from tests.fuzz.making import FrameMaker
    from tests.harness.admin import Admin, AdminAnswer
    from tests.harness.cluster import Brokers
    from tests.harness.storage import NAME, OTHER, contents, crashed, make, put

FOLDER: Final = Path("build/fuzz")
SEEDS: Final = 200
"""Well-formed inputs that a target starts from."""

PARTS: Final = {
    "tenant": "public",
    "namespace": "default",
    "topic": "orders",
    "subscription": "sub",
    "cluster": "standalone",
}

BETWEEN_CALLS_S: Final = 0.01

Target = Callable[[bytes], None]


def read_frames(data: bytes) -> None:
    read_stream(data)


def read_payloads(data: bytes) -> None:
    """Read an entry with a right checksum; the first byte says where its metadata ends."""
    if data:
        end = 1 + min(data[0], len(data) - 1)
        read_entry(build_entry(data[1:end], data[end:]))


def read_tokens(data: bytes) -> None:
    """Read the bytes and texts that applications store for themselves."""
    for decode in (Checkpoint.from_bytes, MessageId.from_bytes):
        with suppress(AnabranchError):
            decode(data)


class StoreRecovery:
    """Opens a store one of whose files is damaged, and compares each entry with the right one."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._right: dict[str, list[bytes]] = {}
        with SimLoop(1) as loop:
            loop.run(self._prepare())

    async def _prepare(self) -> None:
        disk = DictDisk()
        storage = make(disk)
        await storage.open()
        for name in (NAME, OTHER):
            log = await storage.create(name)
            await put(log, *(f"{name} {number}".encode() for number in range(5)))
        await storage.checkpoint()
        for name in (NAME, OTHER):
            found = storage.get(name)
            assert found is not None
            await put(found, b"after the checkpoint")
            self._right[name] = await contents(found)
        self._files = dict((await crashed(disk, storage)).files)

    def __call__(self, data: bytes) -> None:
        """Replace bytes of one file: the first byte names the file, the next four the place."""
        if len(data) < 5:
            return
        name = sorted(self._files)[data[0] % len(self._files)]
        right = self._files[name]
        at = int.from_bytes(data[1:5], "big") % (len(right) + 1)
        damaged = right[:at] + data[5:] + right[at + len(data) - 5 :]
        with SimLoop(1) as loop:
            loop.run(self._open(DictDisk({**self._files, name: damaged})))

    async def _open(self, disk: DictDisk) -> None:
        storage = make(disk)
        try:
            await storage.open()
        except CorruptDataError:
            return
        try:
            await self._compare(storage)
        finally:
            await storage.close()

    async def _compare(self, storage: SegmentStorage) -> None:
        for name in storage.names():
            log = storage.get(name)
            assert log is not None
            with suppress(CorruptDataError):
                wrong = set(await contents(log)) - set(self._right.get(name, ()))
                if wrong:
                    raise FuzzError(f"{name} has entries that no producer sent: {wrong}")


def _calls() -> tuple[tuple[str, str], ...]:
    """Method and path of every endpoint that may read a body, with names that exist or may be created."""
    return tuple(
        (one.method, re.sub(r"\{(\w+)[^}]*\}", lambda found: PARTS.get(found[1], "0"), one.path))
        for one in ENDPOINTS
        if one.method in ("DELETE", "POST", "PUT")
    )


class RestCalls:
    """Calls every admin path with any body; each answer is a status below 500."""

    def __init__(self) -> None:
        self._loop = SimLoop(1)
        self._admin = self._loop.run(self._start())

    async def _start(self) -> Admin:
        brokers = Brokers(self._loop)
        await brokers.start_all()
        return Admin(brokers)

    def __call__(self, data: bytes) -> None:
        """The first byte names the path, the rest is the body."""
        if not data:
            return
        method, path = CALLS[data[0] % len(CALLS)]
        answer = self._loop.run(self._ask(method, path, data[1:]))
        if answer.status >= 500:
            raise FuzzError(f"{method} {path} answered {answer.status}: {answer.body[:200]!r}")

    async def _ask(self, method: str, path: str, body: bytes) -> AdminAnswer:
        answer = await self._admin.ask(method, path, body)
        # The broker's own work goes on between two calls.
        await asyncio.sleep(BETWEEN_CALLS_S)
        return answer


CALLS: Final = _calls()


def _frame_seeds() -> Iterable[bytes]:
    maker = FrameMaker("frames")
    return (maker.frame() for _ in range(SEEDS))


def _payload_seeds() -> Iterable[bytes]:
    maker = FrameMaker("payloads")
    for _ in range(SEEDS):
        entry = maker.entry()
        yield entry[9:10] + entry[10:]


def _body_seeds() -> Iterable[bytes]:
    bodies = (
        b"",
        b"null",
        b"3",
        b'"x"',
        b"[]",
        b'{"ledgerId":1,"entryId":2}',
        b'{"partitions":3,"properties":{}}',
    )
    return (bytes((path,)) + body for path in range(len(CALLS)) for body in bodies)


def _damage_seeds() -> Iterable[bytes]:
    return (bytes((file, 0, 0, 0, at, 0xFF)) for file in range(8) for at in range(0, 250, 25))


TARGETS: Final[dict[str, tuple[Callable[[], Target], Callable[[], Iterable[bytes]]]]] = {
    "frames": (lambda: read_frames, _frame_seeds),
    "payloads": (lambda: read_payloads, _payload_seeds),
    "tokens": (lambda: read_tokens, lambda: [Checkpoint.earliest().to_bytes()]),
    "recovery": (StoreRecovery, _damage_seeds),
    "rest": (RestCalls, _body_seeds),
}


def main(argv: list[str]) -> None:
    name, options = argv[1], argv[2:]
    make_target, make_seeds = TARGETS[name]
    corpus = FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(make_seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    options += [f"-artifact_prefix={FOLDER}/{name}-", "-rss_limit_mb=1024", "-timeout=20", "-max_len=4096"]
    if not any(Path(option).is_file() for option in options):
        options.append(str(corpus))
    atheris.Setup([argv[0], *options], make_target())
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
