"""Laws of token buckets and of the division of a rate among workers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.token_bucket import RESERVED, Rate, RateBucket, TokenBucket, divide

amounts = st.integers(1, 5000)
pauses = st.floats(0.0, 3.0)
rates = st.integers(1, 100_000)


@given(rates, st.lists(st.tuples(pauses, amounts), max_size=50))
def test_a_caller_that_waits_never_gets_more_than_rate_and_burst(
    per_s: int, takes: list[tuple[float, int]]
) -> None:
    bucket, now, taken, last = TokenBucket(per_s, per_s, 0.0), 0.0, 0, 0
    for pause_s, amount in takes:
        now += pause_s
        now += bucket.wait_s(now)
        bucket.take(amount, now)
        taken, last = taken + amount, max(last, amount)
    # One take may exceed the tokens; the next one waits until that debt is paid.
    assert taken <= per_s + per_s * now * 1.0001 + last + per_s * 0.002 * len(takes)


@given(rates, st.lists(amounts, min_size=1, max_size=50))
def test_a_caller_that_always_has_more_gets_the_whole_rate(per_s: int, takes: list[int]) -> None:
    bucket, now = TokenBucket(per_s, per_s, 0.0), 0.0
    for amount in takes:
        now += bucket.wait_s(now)
        bucket.take(amount, now)
    # All waits together are the time that the taken tokens need to flow in.
    assert now <= sum(takes) / per_s + 0.002 * len(takes)


@given(rates, amounts, pauses)
def test_the_wait_is_long_enough(per_s: int, amount: int, pause_s: float) -> None:
    bucket = TokenBucket(per_s, per_s, 0.0)
    bucket.take(per_s + amount, 0.0)
    wait_s = bucket.wait_s(0.0)
    assert wait_s > 0.0
    assert bucket.wait_s(wait_s + pause_s + 1e-6) <= 0.001


@given(rates, rates, st.floats(0.0, 5.0))
def test_another_rate_forgives_no_debt_and_gives_no_tokens(before: int, after: int, later_s: float) -> None:
    bucket = TokenBucket(before, before, 0.0)
    bucket.take(3 * before, 0.0)
    bucket.wait_s(later_s)
    tokens = bucket.tokens
    bucket.change(after, after, later_s)
    assert bucket.tokens == min(tokens, after)


def test_time_that_goes_back_gives_no_tokens() -> None:
    bucket = TokenBucket(10, 10, 5.0)
    bucket.take(10, 5.0)
    assert bucket.wait_s(1.0) > 0
    assert bucket.tokens == 0


def test_the_tighter_of_two_limits_decides() -> None:
    bucket = RateBucket(Rate(messages=10, bytes=1000), 0.0)
    bucket.take(1, 3000, 0.0)
    assert bucket.wait_s(0.0) == 2.0
    bucket.take(60, 0, 0.0)
    assert bucket.wait_s(0.0) == 5.1


def test_a_period_is_the_burst() -> None:
    bucket = RateBucket(Rate(messages=60, period_s=60.0), 0.0)
    assert bucket.messages_left(0.0, 100) == 60
    bucket.take(60, 0, 0.0)
    assert bucket.messages_left(2.0, 100) == 2
    bucket.take(2, 0, 2.0)
    assert bucket.messages_left(2.0, 100) == 1


def test_a_share_is_a_part_of_the_rate() -> None:
    bucket = RateBucket(Rate(messages=100), 0.0, 0.25)
    assert bucket.messages_left(0.0, 1000) == 25
    bucket.take(25, 0, 0.0)
    assert math.isclose(bucket.take_demand(1.0), 0.25)
    assert bucket.take_demand(1.0) == 0.0
    bucket.change(bucket.rate, 0.5, 0.0)
    bucket.take(50, 0, 0.0)
    assert bucket.wait_s(0.0) == 1.0


demands = st.lists(st.one_of(st.floats(0.0, 2.0), st.just(math.inf)), min_size=1, max_size=8)


@given(demands)
def test_shares_add_up_to_the_rate(found: list[float]) -> None:
    shares = divide(found)
    assert math.isclose(sum(shares), 1.0)
    assert all(share >= RESERVED / len(found) - 1e-9 for share in shares)


@given(demands)
def test_a_larger_demand_never_gets_the_smaller_share(found: list[float]) -> None:
    shares = divide(found)
    for one, mine in zip(found, shares, strict=True):
        assert all(mine <= other + 1e-9 for more, other in zip(found, shares, strict=True) if more >= one)


def test_the_whole_rate_goes_where_the_load_is() -> None:
    assert divide([math.inf]) == [1.0]
    busy, idle = divide([math.inf, 0.0])
    assert math.isclose(busy, 0.95)
    assert math.isclose(idle, 0.05)
    assert divide([math.inf, math.inf]) == [0.5, 0.5]
    assert divide([0.0, 0.0]) == [0.5, 0.5]
    busy, light = divide([math.inf, 0.2])
    assert math.isclose(light, 0.3)
    assert math.isclose(busy, 0.7)
