"""All messages of a topic by key, as a blocking client receives them."""

from __future__ import annotations

from collections import defaultdict

import anabranch
from anabranch.model.checkpoint import Checkpoint

QUIET_S = 3.0
"""The topic is at its end when no message came for so long."""


def messages_by_key(
    client: anabranch.Client, topic: str, quiet_s: float = QUIET_S
) -> dict[str, list[anabranch.Message[bytes]]]:
    """The messages of each key, in the order of the topic."""
    found: dict[str, list[anabranch.Message[bytes]]] = defaultdict(list)
    with client.create_checkpoint_consumer(topic, start=Checkpoint.earliest()) as consumer:
        while messages := consumer.receive_many(1000, timeout=quiet_s):
            for message in messages:
                found[str(message.key)].append(message)
    return dict(found)


def numbers_by_key(client: anabranch.Client, topic: str, quiet_s: float = QUIET_S) -> dict[str, list[int]]:
    """The numbers that are the values of each key, in the order of the topic."""
    found = messages_by_key(client, topic, quiet_s)
    return {key: [int(message.data) for message in messages] for key, messages in found.items()}
