"""The leader and the record of the scalable topic that an admin call names."""

from __future__ import annotations

from anabranch.admin.calls import Call
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import TopicNotFoundError
from anabranch.metadata.records import TopicRecord


async def leader_of(call: Call) -> TopicLeader:
    try:
        return await call.broker.controllers.controller(call.topic("topic"))
    except TopicNotFoundError as error:
        raise await _absent(call, error) from None


async def _absent(call: Call, error: TopicNotFoundError) -> TopicNotFoundError:
    """The error, with the advice to migrate if a classic topic has the name."""
    name = call.topic("topic")
    classic = await call.topics.find_classic(name)
    if classic is None or classic.migrated:
        return error
    return TopicNotFoundError(f"{error}; {name.local} is a classic topic: migrate it first")


async def record_of(call: Call) -> TopicRecord:
    try:
        return await call.topics.load(call.topic("topic"))
    except TopicNotFoundError as error:
        raise await _absent(call, error) from None
