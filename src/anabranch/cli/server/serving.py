"""`anabranch serve` from its plain options to a running broker, without the parser of the command line.

The import of the parser takes longer than everything else that the start needs besides the broker. Options in
an unusual form, `--help` and mistakes are left to the parser.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from anabranch.config.broker import BrokerConfig

NUMBERS: Final = ("port", "http-port", "tls-port", "https-port", "workers")
TEXTS: Final = ("host", "data")
ALLOW: Final = "--allow-unauthenticated"


@dataclass(frozen=True)
class ServeOptions:
    """The configuration file, and the settings that the options change."""

    config: str | None = None
    sets: tuple[str, ...] = ()


def plain_options(words: Sequence[str]) -> ServeOptions | None:
    """Return the options if all of them are plain, `--name value` or `--name=value`; None otherwise."""
    config: str | None = None
    sets: list[str] = []
    given: list[str] = []
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name == ALLOW and not equals:
            given.append(setting(ALLOW[2:], "true"))
            continue
        if not equals:
            value = left.pop(0) if left else ""
        if not value or value.startswith("-"):
            return None
        if name == "--config" and config is None:
            config = value
        elif name == "--set":
            sets.append(value)
        elif name[2:] in TEXTS or (name[2:] in NUMBERS and value.isdecimal()):
            given.append(setting(name[2:], value))
        else:
            return None
    # A setting that is given twice would have its last value; the parser refuses it.
    names = [one.partition("=")[0] for one in given]
    return ServeOptions(config, (*sets, *given)) if len(set(names)) == len(names) else None


def setting(option: str, value: object) -> str:
    """Return the setting behind an option, such as `http_port=0`."""
    return f"{option.replace('-', '_')}={value}"


def load_settings(options: ServeOptions) -> BrokerConfig:
    """The settings of the file, the environment and the options; refuses a door that is open by mistake."""
    from anabranch.config.doors import check_open_door
    from anabranch.config.files import load_config

    config = load_config(options.config, options.sets, os.environ)
    check_open_door(config.host, authentication=config.authentication, allowed=config.allow_unauthenticated)
    return config


def check_packages() -> None:
    """Raise ModuleNotFoundError if the admin API lacks a package; a ready broker imports them last."""
    for name in ("prometheus_client", "starlette", "uvicorn"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run_broker(options: ServeOptions) -> int:
    check_packages()
    config = load_settings(options)
    if config.workers > 1:
        from anabranch.server.supervisor import run as supervise

        return supervise(config)
    from anabranch.server.node import run

    return run(config)
