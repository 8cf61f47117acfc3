"""A producer that a segment refuses leaves no registration behind that takes effect later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.client.net.closing import Deadline
from anabranch.client.produce.publisher import ANSWERS_S, register_everywhere
from anabranch.errors import ProducerFencedError

POOL: Any = SimpleNamespace(operation_timeout_s=30.0)


def segments_with(*attached: asyncio.Future[int | None]) -> Any:
    """Routes to as many active segments, whose registrations end with these futures."""
    active = [SimpleNamespace(id=number) for number in range(len(attached))]
    producers = [
        SimpleNamespace(attached=future, segment=segment)
        for future, segment in zip(attached, active, strict=True)
    ]
    layout = SimpleNamespace(layout=SimpleNamespace(active=active))
    return SimpleNamespace(layout=layout, segment=lambda segment: producers[segment.id])


@pytest.mark.parametrize("limited", [True, False])
async def test_a_refusal_is_raised_when_the_other_segments_have_answered(limited: bool) -> None:
    loop = asyncio.get_running_loop()
    refused, later = loop.create_future(), loop.create_future()
    refused.set_exception(ProducerFencedError("another producer is exclusive"))
    loop.call_later(0.5, later.set_result, 7)
    with pytest.raises(ProducerFencedError):
        await register_everywhere(segments_with(refused, later), POOL, Deadline(30.0) if limited else None)
    assert later.done()


@pytest.mark.parametrize(("left_s", "waited_s"), [(30.0, ANSWERS_S), (0.25, 0.25), (None, ANSWERS_S)])
async def test_a_refusal_does_not_wait_long_for_other_answers(left_s: float | None, waited_s: float) -> None:
    loop = asyncio.get_running_loop()
    refused, never = loop.create_future(), loop.create_future()
    refused.set_exception(ProducerFencedError("another producer is exclusive"))
    began_s = loop.time()
    deadline = None if left_s is None else Deadline(left_s)
    with pytest.raises(ProducerFencedError):
        await register_everywhere(segments_with(refused, never), POOL, deadline)
    assert loop.time() - began_s == pytest.approx(waited_s)
    never.cancel()
