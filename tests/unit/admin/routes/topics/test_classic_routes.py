"""The paths of classic topics, tenants, namespaces, clusters and brokers, with their statuses."""

from __future__ import annotations

import pytest

from tests.harness.admin import Admin

V2 = "/admin/v2"
SPACE, NO_SPACE = f"{V2}/namespaces/acme/ns", f"{V2}/namespaces/acme/none"
TOPICS = f"{V2}/persistent/acme/ns"
TOPIC, PARTS, NONE = f"{TOPICS}/plain", f"{TOPICS}/parts", f"{TOPICS}/none"
SUB, NO_SUB = f"{TOPIC}/subscription/s", f"{TOPIC}/subscription/none"
SCHEMA = f"{V2}/schemas/acme/ns"
ID = {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}
AVRO = {"type": "STRING", "schema": "", "properties": {}}

# Verb, path, body, status.
TABLE: list[tuple[str, str, object, int]] = [
    ("GET", f"{V2}/clusters", None, 200),
    ("GET", f"{V2}/clusters/standalone", None, 200),
    ("GET", f"{V2}/clusters/mars", None, 404),
    ("PUT", f"{V2}/clusters/standalone", {}, 409),
    ("PUT", f"{V2}/clusters/mars", {}, 412),
    ("POST", f"{V2}/clusters/standalone", {}, 204),
    ("POST", f"{V2}/clusters/mars", {}, 404),
    ("DELETE", f"{V2}/clusters/standalone", None, 412),
    ("DELETE", f"{V2}/clusters/mars", None, 404),
    ("GET", f"{V2}/tenants", None, 200),
    ("GET", f"{V2}/tenants/acme", None, 200),
    ("GET", f"{V2}/tenants/none", None, 404),
    ("PUT", f"{V2}/tenants/new", {"allowedClusters": ["standalone"]}, 204),
    ("PUT", f"{V2}/tenants/new", {"allowedClusters": ["mars"]}, 412),
    ("PUT", f"{V2}/tenants/acme", {}, 409),
    ("PUT", f"{V2}/tenants/new", {"adminRoles": ["boss", ""]}, 204),
    *(("PUT", f"{V2}/tenants/new", {"adminRoles": [role]}, 412) for role in (" boss", "a\nb", "x" * 300)),
    ("POST", f"{V2}/tenants/acme", {"adminRoles": [" "]}, 412),
    ("POST", f"{V2}/tenants/acme", {}, 204),
    ("POST", f"{V2}/tenants/none", {}, 404),
    ("DELETE", f"{V2}/tenants/acme", None, 409),
    ("DELETE", f"{V2}/tenants/none", None, 404),
    ("GET", f"{V2}/namespaces/acme", None, 200),
    ("GET", f"{V2}/namespaces/none", None, 404),
    ("PUT", SPACE, None, 409),
    ("PUT", f"{V2}/namespaces/none/ns", None, 404),
    ("PUT", NO_SPACE, {"message_ttl_in_seconds": 5}, 204),
    ("GET", SPACE, None, 200),
    ("GET", NO_SPACE, None, 404),
    ("DELETE", SPACE, None, 409),
    ("DELETE", f"{SPACE}?force=true", None, 204),
    ("DELETE", NO_SPACE, None, 404),
    ("GET", f"{SPACE}/topics?mode=ALL", None, 200),
    ("GET", f"{SPACE}/topics?mode=SOME", None, 412),
    ("GET", f"{NO_SPACE}/topics", None, 404),
    ("GET", f"{SPACE}/retention", None, 204),
    ("POST", f"{SPACE}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}, 204),
    ("POST", f"{SPACE}/messageTTL", 5, 204),
    ("POST", f"{SPACE}/messageTTL", "five", 412),
    ("POST", f"{SPACE}/deduplication", True, 204),
    ("POST", f"{SPACE}/autoTopicCreation", {"allowAutoTopicCreation": False}, 204),
    ("POST", f"{SPACE}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}, 204),
    ("DELETE", f"{SPACE}/autoSubscriptionCreation", None, 204),
    ("POST", f"{NO_SPACE}/messageTTL", 5, 404),
    ("GET", TOPICS, None, 200),
    ("GET", f"{TOPICS}/partitioned", None, 200),
    ("GET", f"{V2}/persistent/acme/none", None, 404),
    ("PUT", TOPIC, None, 409),
    ("PUT", f"{TOPICS}/new", {"team": "sales"}, 204),
    ("PUT", f"{V2}/persistent/acme/none/new", None, 404),
    ("PUT", f"{TOPICS}/new/partitions", 3, 204),
    ("PUT", f"{TOPICS}/new/partitions", 0, 412),
    ("PUT", f"{PARTS}/partitions", 3, 409),
    ("POST", f"{PARTS}/partitions", 4, 204),
    ("POST", f"{NONE}/partitions", 4, 404),
    ("GET", f"{PARTS}/partitions", None, 200),
    ("GET", f"{NONE}/partitions", None, 404),
    ("DELETE", f"{PARTS}/partitions", None, 204),
    ("DELETE", f"{NONE}/partitions", None, 404),
    ("DELETE", f"{TOPIC}/partitions", None, 409),
    ("DELETE", PARTS, None, 409),
    ("DELETE", f"{PARTS}?force=true", None, 409),
    ("DELETE", TOPIC, None, 204),
    ("DELETE", f"{TOPIC}?force=true", None, 204),
    ("DELETE", NONE, None, 404),
    ("POST", f"{TOPIC}/terminate", None, 200),
    ("POST", f"{PARTS}/terminate", None, 405),
    ("POST", f"{PARTS}/terminate/partitions", None, 200),
    ("POST", f"{NONE}/terminate", None, 404),
    ("GET", f"{TOPIC}/stats", None, 200),
    ("GET", f"{NONE}/stats", None, 404),
    ("GET", f"{PARTS}/partitioned-stats?perPartition=true", None, 200),
    ("GET", f"{NONE}/partitioned-stats", None, 404),
    ("GET", f"{TOPIC}/internalStats", None, 200),
    ("GET", f"{PARTS}/internalStats", None, 405),
    ("GET", f"{NONE}/internalStats", None, 404),
    ("GET", f"{TOPIC}/subscriptions", None, 200),
    ("GET", f"{NONE}/subscriptions", None, 404),
    ("PUT", SUB, "earliest", 409),
    ("PUT", NO_SUB, "latest", 204),
    ("PUT", NO_SUB, ID, 204),
    ("PUT", NO_SUB, "soon", 412),
    ("PUT", f"{NO_SUB}?replicated=true", "latest", 405),
    ("PUT", f"{NONE}/subscription/s", "latest", 404),
    ("DELETE", SUB, None, 204),
    ("DELETE", NO_SUB, None, 404),
    *(
        ("POST", f"{place}/{call}", body, status)
        for place, status in ((SUB, 204), (NO_SUB, 404))
        for call, body in (
            ("skip_all", None),
            ("skip/1", None),
            ("resetcursor/0", None),
            ("resetcursor", ID),
            ("expireMessages/5", None),
        )
    ),
    ("POST", f"{SUB}/skip/x", None, 412),
    ("POST", f"{SUB}/skip/-1", None, 412),
    ("POST", f"{SUB}/expireMessages/-5", None, 412),
    ("POST", f"{TOPIC}/all_subscription/expireMessages/-5", None, 412),
    *(
        ("POST", f"{SUB}/{call}", {**ID, **wrong}, 412)
        for call in ("resetcursor", "expireMessages", "analyzeBacklog")
        for wrong in ({"batchIndex": "x"}, {"isExcluded": "no"}, {"entryId": True}, {"ledgerId": 10**30})
    ),
    ("PUT", NO_SUB, {**ID, "isExcluded": "no"}, 412),
    ("PUT", f"{TOPIC}/backlogSize", {**ID, "ledgerId": 10**30}, 400),
    ("PUT", f"{PARTS}-partition-0", None, 204),
    ("PUT", f"{PARTS}-partition-9", None, 412),
    ("PUT", f"{NONE}-partition-0", None, 412),
    ("PUT", f"{NONE}-partition-0/partitions", 2, 412),
    ("GET", f"{SUB}/position/1", None, 404),
    ("GET", f"{NO_SUB}/position/1", None, 404),
    ("GET", f"{TOPIC}/lastMessageId", None, 200),
    ("GET", f"{PARTS}/lastMessageId", None, 405),
    ("GET", f"{NONE}/lastMessageId", None, 404),
    ("PUT", f"{TOPIC}/backlogSize", ID, 200),
    ("PUT", f"{TOPIC}/backlogSize", None, 412),
    ("PUT", f"{PARTS}/backlogSize", ID, 405),
    ("PUT", f"{NONE}/backlogSize", ID, 404),
    ("PUT", f"{TOPIC}/unload", None, 204),
    ("PUT", f"{NONE}/unload", None, 404),
    ("POST", f"{TOPIC}/trim", None, 204),
    ("POST", f"{PARTS}/trim", None, 204),
    ("POST", f"{NONE}/trim", None, 404),
    ("DELETE", f"{TOPIC}/truncate", None, 204),
    ("DELETE", f"{PARTS}/truncate", None, 204),
    ("DELETE", f"{NONE}/truncate", None, 404),
    *((method, f"{TOPIC}/s/dispatchRate", None, 405) for method in ("GET", "POST", "DELETE")),
    ("POST", f"{TOPIC}/permissions/dispatchRate", ["consume"], 204),
    *(
        ("POST", f"{SPACE}{bundle}/{call}", None, status)
        for bundle, status in (("", 204), ("/0x00000000_0xffffffff", 204), ("/0x00000000_0x80000000", 404))
        for call in ("clearBacklog", "clearBacklog/s", "unsubscribe/s", "unsubscribe/none")
    ),
    *(("POST", f"{NO_SPACE}/{call}", None, 404) for call in ("clearBacklog", "unsubscribe/s")),
    ("POST", f"{SPACE}/permissions/clearBacklog", ["consume"], 204),
    ("GET", f"{V2}/brokers/backlog-quota-check", None, 204),
    ("GET", f"{V2}/broker-stats/topics", None, 200),
    ("GET", f"{V2}/broker-stats/metrics", None, 405),
    ("PUT", f"{TOPIC}/compaction", None, 204),
    ("GET", f"{TOPIC}/compaction", None, 200),
    ("GET", f"{NONE}/compaction", None, 404),
    *(("GET", f"{V2}/brokers{path}", None, 200) for path in ("", "/health", "/ready", "/version")),
    ("GET", f"{V2}/brokers/standalone", None, 200),
    ("GET", f"{V2}/brokers/leaderBroker", None, 200),
    ("GET", f"{V2}/brokers/internal-configuration", None, 200),
    ("GET", f"{SCHEMA}/plain/schema", None, 404),
    ("GET", f"{SCHEMA}/plain/schemas", None, 200),
    ("GET", f"{SCHEMA}/plain/schema/0", None, 404),
    ("POST", f"{SCHEMA}/plain/schema", AVRO, 200),
    ("DELETE", f"{SCHEMA}/plain/schema", None, 200),
    ("GET", "/lookup/v2/topic/persistent/acme/ns/plain", None, 200),
    ("GET", "/status.html", None, 200),
]


@pytest.fixture
def acme(admin: Admin) -> Admin:
    """The admin API of a broker with a topic, a partitioned topic and a subscription without messages."""
    assert admin("PUT", f"{V2}/tenants/acme").status == 204
    assert admin("PUT", SPACE).status == 204
    assert admin("PUT", TOPIC).status == 204
    assert admin("PUT", f"{PARTS}/partitions", 2).status == 204
    assert admin("PUT", SUB, "earliest").status == 204
    return admin


@pytest.mark.parametrize(("method", "path", "body", "status"), TABLE)
def test_answers(acme: Admin, method: str, path: str, body: object, status: int) -> None:
    answer = acme(method, path, body)
    assert answer.status == status, answer.body
    if status >= 400:
        assert answer.json["reason"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{V2}/brokers/mars"),
        ("GET", f"{TOPIC}/internal-info"),
        ("GET", f"{SPACE}/nonsense"),
    ],
)
def test_a_path_that_is_not_offered_is_named(acme: Admin, method: str, path: str) -> None:
    answer = acme(method, path)
    assert answer.status == 404
    assert answer.json["reason"].startswith(f"{path} is not offered")
