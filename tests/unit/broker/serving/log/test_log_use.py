"""When a served log may be unloaded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.serving.context import LogUse
from anabranch.broker.serving.log.served_log import LogActivity, may_unload

UNUSED = LogActivity(clients=0, calls=0, working=False, troubled=False, closed=False, idle_s=10)


def test_a_log_that_was_not_used_for_long_is_unloaded() -> None:
    assert may_unload(UNUSED, idle_s=10)
    assert not may_unload(UNUSED._replace(idle_s=9.9), idle_s=10)


@pytest.mark.parametrize(
    "use", [{"clients": 1}, {"calls": 1}, {"working": 1}, {"troubled": 1}, {"closed": 1}]
)
@given(idle_s=st.floats(0, 1e9), limit_s=st.floats(0, 1e6))
def test_a_log_in_use_stays_however_long_it_is_quiet(
    use: dict[str, Any], idle_s: float, limit_s: float
) -> None:
    assert not may_unload(UNUSED._replace(idle_s=idle_s, **use), limit_s)


def test_calls_count_until_the_last_one_ends_also_with_an_error() -> None:
    use = LogUse(now_s=0)

    def fail() -> None:
        with use.call():
            assert use.calls == 2
            raise KeyError

    with use.call():
        with pytest.raises(KeyError):
            fail()
        assert use.calls == 1
    assert use.calls == 0
