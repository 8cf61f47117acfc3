"""The flag that writes scenario traces again."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-scenarios",
        action="store_true",
        help="rewrite the traces in tests/scenarios",
    )
