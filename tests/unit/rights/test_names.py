"""Names of producers and consumers that belong to roles."""

from __future__ import annotations

import pytest

from anabranch.rights.names import bound_name, has_stored, is_foreign, roles_have_stored, stored_names


@pytest.mark.parametrize(
    ("holder", "asking", "foreign"),
    [("alice", "bob", True), ("alice", "alice", False), ("", "bob", False), ("alice", "", False)],
)
def test_a_name_is_closed_only_between_two_roles(holder: str, asking: str, foreign: bool) -> None:
    assert is_foreign(holder, asking) is foreign


def test_without_authentication_names_are_stored_as_ever() -> None:
    assert bound_name("p", "") == "p"
    assert stored_names("p", "") == ("p",)


def test_a_role_goes_on_with_what_was_stored_before_authentication() -> None:
    assert stored_names("p", "alice") == (bound_name("p", "alice"), "p")


def test_no_other_name_and_role_give_the_same_stored_name() -> None:
    stored = [bound_name(name, role) for name in ("p", "p a", "pa") for role in ("", "a", "a\np", "p")]
    assert len(set(stored)) == len(stored)


def test_a_longer_name_of_a_role_is_another_name() -> None:
    known = ({bound_name("p1", "alice"): 3, "p": 1},)
    assert not roles_have_stored("p", known)
    assert roles_have_stored("p1", known)
    assert has_stored("p1", "alice", known)
    assert not has_stored("p1", "bob", known)
