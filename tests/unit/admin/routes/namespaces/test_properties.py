"""Properties of classic topics and namespaces, and clusters, over HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.admin.routes.cluster.configuration import HIDDEN, shown_settings
from tests.harness.admin import CLASSIC, Admin

NAMESPACE = "/admin/v2/namespaces/public/default"
CLUSTERS = "/admin/v2/clusters"


@pytest.mark.parametrize("partitions", [0, 3])
def test_properties_of_a_classic_topic_are_changed_one_by_one(admin: Admin, partitions: int) -> None:
    path = f"{CLASSIC}/properties"
    assert admin("GET", path).status == admin("PUT", path, {"a": "1"}).status == 404
    made = admin("PUT", f"{CLASSIC}/partitions", partitions) if partitions else admin("PUT", CLASSIC)
    assert made.status == 204
    assert admin("GET", path).json == {}
    assert admin("PUT", path, {"a": "1", "b": "2"}).status == 204
    assert admin("PUT", path, {"b": "3"}).status == 204
    assert admin("DELETE", f"{path}?key=a").status == 204
    assert admin("GET", path).json == admin("GET", f"{CLASSIC}/partitions").json["properties"] == {"b": "3"}
    assert admin("DELETE", path).status == 412
    assert admin("PUT", path).status == 400
    assert admin("PUT", path, {"b": 3}).status == 400


def test_properties_of_a_namespace_are_set_together_and_alone(admin: Admin) -> None:
    assert admin("GET", f"{NAMESPACE}/properties").json == {}
    assert admin("PUT", f"{NAMESPACE}/properties", {"a": "1"}).status == 204
    assert admin("PUT", f"{NAMESPACE}/property/b/2%2F3").status == 204
    assert admin("GET", f"{NAMESPACE}/properties").json == {"a": "1", "b": "2/3"}
    assert admin("GET", f"{NAMESPACE}/property/b").json == "2/3"
    assert admin("GET", f"{NAMESPACE}/property/c").status == 404
    assert admin("DELETE", f"{NAMESPACE}/property/a").json == "1"
    assert admin("DELETE", f"{NAMESPACE}/property/a").status == 404
    assert admin("GET", NAMESPACE).json["properties"] == {"b": "2/3"}
    assert admin("DELETE", f"{NAMESPACE}/properties").status == 204
    assert admin("GET", f"{NAMESPACE}/properties").json == {}


def test_there_is_one_cluster_that_describes_itself(admin: Admin) -> None:
    shown = admin("GET", f"{CLUSTERS}/standalone")
    assert shown.status == 200
    assert admin("PUT", f"{CLUSTERS}/standalone", {}).status == 409
    assert admin("PUT", f"{CLUSTERS}/west", {"serviceUrl": "http://west:8080"}).status == 412
    assert admin("POST", f"{CLUSTERS}/standalone", shown.json).status == 204
    assert admin("POST", f"{CLUSTERS}/standalone", {"serviceUrl": "http://evil:8080"}).status == 405
    assert admin("DELETE", f"{CLUSTERS}/standalone").status == 412
    assert admin("DELETE", f"{CLUSTERS}/west").status == admin("POST", f"{CLUSTERS}/west").status == 404


def test_settings_that_are_read_at_the_start_are_shown_without_secrets_and_not_changed(admin: Admin) -> None:
    path = "/admin/v2/brokers/configuration"
    assert "clusterName" not in admin("GET", path).json
    assert admin("GET", f"{path}/values").json == {}
    shown = admin("GET", f"{path}/runtime").json
    assert shown["clusterName"] == "standalone"
    assert all(isinstance(value, str) for value in shown.values())
    refused = admin("POST", f"{path}/clusterName/other")
    assert (refused.status, "start them again" in refused.json["reason"]) == (412, True)
    assert admin("POST", f"{path}/nonsense/1").status == admin("DELETE", f"{path}/clusterName").status == 412
    secret = replace(admin.broker.config, token_secret_key="data:;base64,c2VjcmV0")
    assert "c2VjcmV0" not in str(shown_settings(secret))
    assert shown_settings(secret)["tokenSecretKey"] == HIDDEN
