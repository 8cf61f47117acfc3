"""The checkpoint consumer: all segments in key order, with positions that only the application keeps."""

from __future__ import annotations

from typing import TypeVar

from anabranch.client.consume.consumers.checkpoint_parts import CheckpointParts
from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.options import Seconds
from anabranch.model.checkpoint import Checkpoint

T = TypeVar("T")


class AsyncCheckpointConsumer(ReceivingConsumer[T]):
    """Reads a topic from a checkpoint on; made by `AsyncClient.create_checkpoint_consumer`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            reader = await client.create_checkpoint_consumer("orders", start=Checkpoint.earliest())
    """

    def __init__(self, parts: CheckpointParts[T]) -> None:
        super().__init__(parts)
        self.parts: CheckpointParts[T] = parts

    def checkpoint(self) -> Checkpoint:
        """The position after the messages handed out so far; reading from it continues with the next message.

        In a group it has the segments that this member has read or need not read; see `Checkpoint.merge`.
        """
        return self.parts.checkpoint()

    async def commit(self, checkpoint: Checkpoint | None = None, timeout: Seconds | None = None) -> None:
        """Tell the group that this checkpoint, or the current one, is stored by the application.

        A member that gets a bucket of this one continues at the last committed position. From the first
        commit on, members share segments by buckets. Raises ConsumerBusyError, and commits nothing, if
        another member got a bucket meanwhile: it receives what this one received since its last commit.
        """
        await self.parts.commit(checkpoint, timeout)
