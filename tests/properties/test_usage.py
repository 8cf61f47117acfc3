"""Laws of the counts of connected clients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.serving.rates.usage import TenantUse, TopicUse, Usage, merged, merged_tenant
from anabranch.model.names import TopicName

LOGS = [
    TopicName.parse(text)
    for text in (
        "segment://one/a/orders/0000-7fff-0",
        "segment://one/a/orders/8000-ffff-1",
        "persistent://one/a/orders",
        "persistent://one/b/orders",
        "topic://one/a/orders",
        "segment://two/a/orders/0000-ffff-0",
    )
]


@dataclass(eq=False)
class CountedClient:
    """A producer without a subscription, or a consumer with one."""

    log: TopicName
    subscription: str | None
    name: str
    link: str

    @property
    def bound_name(self) -> str:
        return self.name


clients = st.lists(
    st.builds(
        CountedClient,
        st.sampled_from(LOGS),
        st.sampled_from([None, "s1", "s2"]),
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
    ),
    max_size=30,
)


def add(usage: Usage, client: CountedClient) -> None:
    if client.subscription is None:
        usage.add_producer(client.log, client)
    else:
        usage.add_consumer(client.log, client.subscription, client)


def expected(found: list[CountedClient], topic: TopicName, subscription: str | None) -> int:
    """Count each name as often as the log of the topic that has it most often."""
    most: Counter[str] = Counter()
    for log in LOGS:
        if (log.topic if log.is_segment else log) == topic:
            most |= Counter(one.name for one in found if (one.log, one.subscription) == (log, subscription))
    return sum(most.values())


@given(clients, st.data())
def test_counts_are_those_of_the_connected_clients(found: list[CountedClient], data: st.DataObject) -> None:
    usage = Usage()
    for client in found:
        add(usage, client)
        add(usage, client)
    gone = data.draw(st.lists(st.sampled_from(found), unique_by=id) if found else st.just([]))
    for client in gone:
        usage.discard(client)
        usage.discard(client)
    left = [client for client in found if client not in gone]
    for log in LOGS:
        use, topic = usage.of_topic(log), log.topic if log.is_segment else log
        assert use.producer_count == expected(left, topic, None)
        assert use.consumers_of("s1") == expected(left, topic, "s1")
    for tenant in ("one", "two"):
        links = {client.link for client in left if client.log.tenant == tenant}
        assert usage.of_tenant(tenant).connections == len(links)
    for client in left:
        usage.discard(client)
    assert usage.of_tenant("one") == usage.of_tenant("two") == TenantUse()


@given(clients, clients)
def test_two_brokers_count_as_one_with_all_clients_of_each_log(
    here: list[CountedClient], there: list[CountedClient]
) -> None:
    # A log is served by one broker, and a connection is one to a single broker.
    there = [one for one in there if one.log not in {other.log for other in here}]
    both, parts = Usage(), [Usage(), Usage()]
    for part, found in zip(parts, (here, there), strict=True):
        for client in found:
            client.link += str(parts.index(part))
            add(part, client)
            add(both, client)
    for tenant in ("one", "two"):
        assert merged_tenant(part.of_tenant(tenant) for part in parts) == both.of_tenant(tenant)
    for log in LOGS:
        assert merged(part.of_topic(log) for part in parts) == both.of_topic(log)


def test_no_clients_are_no_use() -> None:
    assert merged([]) == TopicUse()
