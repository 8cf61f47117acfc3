"""The method `basic`: hashes of htpasswd, costs, limits of guessing, and changes of the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import bcrypt
import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.security.methods import htpasswd
from tests.harness.gates import TestedGate, data_url

APR1 = "$apr1$8sFt66rZ$"
BCRYPT = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
FILE = f"""\
# comments and empty lines are skipped

alice:{BCRYPT}
bob:{APR1}CwW5jnBTcCMb9M9VZMRdm/
carol:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=
"""
RIGHT = ["alice:open sesame", "bob:password", "carol:password"]


def basic(gate: TestedGate, text: str = FILE) -> TestedGate:
    return gate.use(authentication_providers="basic", basic_auth_file=data_url(text.encode()))


@pytest.mark.parametrize(
    ("password", "hashed"),
    [
        ("password", "CwW5jnBTcCMb9M9VZMRdm/"),
        ("a", "ZQyG/P2SewAXpDgC1ke9d0"),
        ("a long password with more than sixteen bytes", "QEqv/tjpWOj67vJ9Br1z0/"),
        ("pässword", "mZmuFRFRLd/fqji9JCgIf1"),
    ],
)
def test_apr1_is_that_of_apache(password: str, hashed: str) -> None:
    assert htpasswd.apr1(password.encode(), "8sFt66rZ") == APR1 + hashed


@pytest.mark.parametrize("credentials", RIGHT)
async def test_the_user_is_the_role(gate: TestedGate, credentials: str) -> None:
    caller = await basic(gate).prove("basic", credentials)
    assert (caller.role, caller.method) == (credentials.partition(":")[0], "basic")


@pytest.mark.parametrize(
    "credentials",
    [
        "alice:wrong",
        "bob:passwort",
        "carol:",
        "dave:password",
        "alice",
        "",
        ":",
        "alice:open sesame ",
        b"\xff:x",
        "a" * 5000,
    ],
)
async def test_wrong_credentials_are_refused(gate: TestedGate, credentials: str | bytes) -> None:
    reason = await basic(gate).refusal("basic", credentials)
    assert "sesame" not in reason


async def test_the_audit_log_names_known_users_only(gate: TestedGate) -> None:
    basic(gate)
    assert await gate.refusal("basic", "alice:wrong") == "the password of alice is wrong"
    assert await gate.refusal("basic", "my password:") == "the user is unknown"


async def test_an_unknown_user_costs_as_much_as_a_known_one(gate: TestedGate) -> None:
    basic(gate)
    await gate.refusal("basic", "alice:wrong")
    assert gate.hashes == 1
    await gate.refusal("basic", "mallory:wrong")
    assert gate.hashes == 2


async def test_a_right_password_is_hashed_once_and_a_wrong_one_each_time(gate: TestedGate) -> None:
    basic(gate)
    for _ in range(5):
        await gate.prove("basic", RIGHT[0])
    assert gate.hashes == 1
    for _ in range(3):
        await gate.refusal("basic", "alice:wrong")
    assert gate.hashes == 4


async def test_a_changed_password_counts_at_once(gate: TestedGate, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(FILE)
    gate.use(authentication_providers="basic", basic_auth_file=str(file))
    await gate.prove("basic", "carol:password")
    file.write_text(FILE.replace("W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "qUqP5cyxm6YcTAhz05Hph5gvu9M="))
    gate.clock.jump(by_ms=1500)
    await gate.refusal("basic", "carol:password")
    await gate.prove("basic", "carol:test")


async def test_an_address_that_guesses_is_refused_without_a_hash_until_it_waits(gate: TestedGate) -> None:
    basic(gate)
    await gate.prove("basic", RIGHT[0])
    for number in range(21):
        await gate.refusal("basic", f"alice:guess {number}")
    before = gate.hashes
    assert "too often" in await gate.refusal("basic", "alice:guess")
    assert "too often" in await gate.refusal("basic", RIGHT[1])
    assert gate.hashes == before
    # A password that is known to be right, and other addresses, are not affected.
    assert (await gate.prove("basic", RIGHT[0])).role == "alice"
    assert (await gate.prove("basic", RIGHT[1], address="10.0.0.2:1")).role == "bob"
    await asyncio.sleep(10)
    assert (await gate.prove("basic", RIGHT[2])).role == "carol"


async def test_a_flood_of_guesses_leaves_room_for_other_addresses(gate: TestedGate) -> None:
    basic(gate)
    gate.hash_s = 0.1
    flood = [asyncio.ensure_future(gate.refusal("basic", f"alice:guess {number}")) for number in range(500)]
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    assert (await gate.prove("basic", RIGHT[1], address="10.0.0.2:1")).role == "bob"
    assert asyncio.get_running_loop().time() - began < 1.0
    reasons = await asyncio.gather(*flood)
    assert gate.hashes < 10
    assert sum("are being compared" in reason for reason in reasons) > 400


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:plain",
        "alice:rqXexS6ZhobKA",
        ":x",
        "al\tice:x",
        "alice:$2y$31$" + 53 * "a",
        "alice:{SHA}x=",
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_content(gate: TestedGate, line: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="line 1 of the file") as caught:
        basic(gate, line)
    assert "alice" not in str(caught.value)


def test_the_method_needs_a_file(gate: TestedGate) -> None:
    with pytest.raises(InvalidConfigurationError, match="htpasswd -B"):
        gate.use(authentication_providers="basic")
