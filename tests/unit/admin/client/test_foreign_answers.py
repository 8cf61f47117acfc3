"""Answers of brokers that are not ours: a missing call is not a missing resource."""

from __future__ import annotations

import pytest

from anabranch.admin.client.requests import AdminRequest, HttpAnswer, any_json, checked
from anabranch.errors import NotAllowedError, NotFoundError, UnsupportedFeatureError

WHY = AdminRequest("GET", "/admin/v2/scalable/public/default/orders/why", any_json, (("limit", "1"),))
NO_SUCH_PATH = b'{"message": "Not Found", "url": "http://broker/why", "status": "404"}'


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, NO_SUCH_PATH), (404, b""), (405, b"<html><h2>HTTP ERROR 405</h2></html>")],
)
def test_a_refusal_without_a_reason_means_that_the_broker_has_no_such_call(status: int, body: bytes) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"no call GET /admin/v2/scalable/.*/orders/why: only"):
        checked(WHY, HttpAnswer(status, {}, body))


def test_a_reason_of_the_broker_is_kept() -> None:
    with pytest.raises(NotFoundError, match=r"^there is no orders$"):
        checked(WHY, HttpAnswer(404, {}, b'{"reason": "there is no orders"}'))
    with pytest.raises(NotAllowedError, match=r"^not now$"):
        checked(AdminRequest("PUT", "/admin/v2/x", any_json), HttpAnswer(405, {}, b'{"reason": "not now"}'))
