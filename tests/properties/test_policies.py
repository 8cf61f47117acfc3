"""Laws of policies: a topic comes before its namespace, a removed policy leaves nothing, quotas are exact."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.policies.backlog import BacklogQuota, OldestBacklog, decide, quota_of
from anabranch.model.policies.effective import TopicPolicies, effective
from anabranch.model.policies.of_topics import policy_of_topic, topic_policies, with_topic_policy

NAMES = st.sampled_from(["messageTTL", "maxMessageSize", "publishRate", "retention"])
TOPICS = st.sampled_from(["orders", "a/b", ""])
ACTIONS = st.sampled_from(["producer_request_hold", "producer_exception", "consumer_backlog_eviction"])
LIMITS = st.none() | st.integers(1, 1000)
STEPS = st.lists(st.tuples(TOPICS, NAMES, st.none() | st.integers(0, 9)), max_size=12)


@given(STEPS)
def test_policies_of_topics_are_those_that_were_set_last(steps: list[tuple[str, str, int | None]]) -> None:
    policies: dict[str, Any] = {"message_ttl_in_seconds": 5}
    last: dict[tuple[str, str], int | None] = {}
    for topic, name, value in steps:
        policies = with_topic_policy(policies, topic, name, value)
        last[topic, name] = value
    for (topic, name), value in last.items():
        assert policy_of_topic(policies, topic, name) == value
    assert policies["message_ttl_in_seconds"] == 5
    if not any(value is not None for value in last.values()):
        assert policies == {"message_ttl_in_seconds": 5}
    assert all(topic_policies(policies).values())


@given(st.none() | st.integers(0, 100), st.none() | st.integers(0, 100), st.none() | st.integers(1, 100))
def test_the_topic_comes_before_its_namespace_and_that_before_the_broker(
    own: int | None, namespace: int | None, broker: int | None
) -> None:
    policies = {} if namespace is None else {"message_ttl_in_seconds": namespace}
    found = effective(
        policies, {} if own is None else {"messageTTL": own}, TopicPolicies(message_ttl_s=broker)
    )
    first = next((value for value in (own, namespace, broker) if value is not None), None)
    assert found.message_ttl_s == (first or None)


@given(
    st.dictionaries(
        st.sampled_from(["messageTTL", "deduplicationEnabled", "retention"]), st.text() | st.booleans()
    )
)
def test_stored_values_of_no_known_form_change_nothing_else(own: dict[str, Any]) -> None:
    found = effective({}, own, TopicPolicies())
    assert found.message_ttl_s is None
    assert found.backlog == BacklogQuota()


@given(st.tuples(LIMITS, ACTIONS), st.tuples(LIMITS, ACTIONS), st.integers(0, 2000), st.integers(0, 2000))
def test_a_quota_acts_exactly_beyond_its_limits(
    by_size: tuple[int | None, str], by_age: tuple[int | None, str], stored: int, old: int
) -> None:
    (size, size_action), (age, age_action) = by_size, by_age
    layer = {
        "destination_storage": {"limitSize": size or -1, "policy": size_action},
        "message_age": {"limitTime": age or -1, "policy": age_action},
    }
    quota = quota_of([None, layer])
    found = decide(quota, OldestBacklog("s", stored, float(old)))
    wanted = None
    if size is not None and stored > size:
        wanted = size_action
    elif age is not None and old > age:
        wanted = age_action
    assert (None if found is None else found.action) == wanted
    assert decide(quota, None) is None
