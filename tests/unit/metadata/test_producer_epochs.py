"""Numbers of exclusive producers: counted for each log, and inherited from the logs before it."""

from __future__ import annotations

from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.producer_epochs import TopicEpoch, TopicEpochs
from anabranch.model.names import TopicName


def log(number: int) -> TopicName:
    return TopicName.parse(f"persistent://public/default/log-{number}")


async def test_a_segment_counts_on_from_the_highest_number_of_its_parents() -> None:
    epochs = TopicEpochs(MemoryStore())
    await epochs.next(log(0), "alice")
    for _ in range(2):
        await epochs.next(log(1), "bob")
    # An interrupted operation is carried out again.
    for _ in range(2):
        await epochs.inherit({log(3): (log(0), log(1)), log(4): (log(0), log(2)), log(5): (log(2),)})
    assert await epochs.current(log(3)) == TopicEpoch(1, "bob")
    assert await epochs.current(log(4)) == TopicEpoch(0, "alice")
    assert await epochs.current(log(5)) == TopicEpoch()
    assert (await epochs.next(log(3), "carol")).number == 2
