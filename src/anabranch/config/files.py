"""Reads the settings of a broker from a file and `key=value` texts, and writes the default file.

A file is TOML, or Java properties like Pulsar's broker.conf.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from anabranch.config.broker import KIB, MIB, BrokerConfig, plain_fields
from anabranch.config.properties import parse_properties, sort_out
from anabranch.errors import InvalidConfigurationError
from anabranch.model.scaling.policy import BROKER_KEYS, FIELDS, AutoScalePolicy, coerce

_logger = logging.getLogger(__name__)


PREFIX = "ANABRANCH_SERVE_"
"""A variable `ANABRANCH_SERVE_HTTP_PORT` sets `http_port`; `ANABRANCH_SERVE_CONFIG` names the file."""


def load_config(
    file: str | os.PathLike[str] | None = None,
    sets: Iterable[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> BrokerConfig:
    """Defaults, then the file, variables, each `key=value`; raises InvalidConfigurationError."""
    given: dict[str, object] = {}
    file = file or environment.get(f"{PREFIX}CONFIG")
    if file is not None:
        given.update(_read_file(file, f"{os.fspath(file)}: "))
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and variable != f"{PREFIX}CONFIG":
            name = _resolve_variable(variable)
            given[name] = parse_setting(name, value.strip())
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidConfigurationError(f"--set {text!r}: write it as key=value")
        name = _resolve_key(key.strip(), "--set: ")
        _refuse_secret(name, value.strip())
        given[name] = parse_setting(name, value.strip())
    return _build(given)


def _resolve_variable(variable: str) -> str:
    """Return the setting that a variable names, by the name here or by that of Pulsar, in any case."""
    key = variable.removeprefix(PREFIX).lower()
    for name in (key, key.replace("auto_scale_", "auto_scale.", 1)):
        if name in _VARIABLES:
            return _VARIABLES[name]
    return _resolve_key(key, f"{variable}: ")


def _refuse_secret(name: str, value: str) -> None:
    """Refuse a secret itself on the command line, which every user of the machine can read."""
    if name in _FIELDS and _FIELDS[name].metadata.get("secret") and value.startswith("data:"):
        raise InvalidConfigurationError(
            f"--set {name}: the list of processes shows arguments to all users of this machine; "
            "name a file, or put the setting into a file for --config"
        )


def default_settings() -> dict[str, Any]:
    """Every setting with its default value; those of auto-scaling below `auto_scale`."""
    scaling = {field.name: field.default for field in dataclasses.fields(AutoScalePolicy)}
    return {field.name: field.default for field in plain_fields()} | {"auto_scale": scaling}


def default_text() -> str:
    """Return the default configuration file: every setting with its description and value."""
    lines = [
        "# Every setting of an Anabranch broker with its default value.",
        "# Pass a file like this with `anabranch serve --config FILE`, one setting with `--set key=value`.",
        "# A variable of the environment does the same: ANABRANCH_SERVE_HTTP_PORT=8080 sets http_port.",
        "# A name of Pulsar's broker.conf may be used instead of the name here.",
    ]
    for field in plain_fields():
        pulsar = field.metadata["pulsar"]
        lines += ["", f"# {field.metadata['about']}", *([f"# In Pulsar: {pulsar}"] if pulsar else [])]
        value = _toml(field.default)
        lines.append(f"# {field.name} =" if value is None else f"{field.name} = {value}")
    lines += ["", "# Limits and thresholds of auto-scaling. Namespaces and topics may override each."]
    lines.append("[auto_scale]")
    names = {field: pulsar for pulsar, field in BROKER_KEYS.items()}
    for field in dataclasses.fields(AutoScalePolicy):
        lines.append(f"{field.name} = {_toml(field.default)}  # {names[field.name]}")
    return "\n".join(lines) + "\n"


_FIELDS = {field.name: field for field in plain_fields()}
_NAMES: Mapping[str, str] = {
    **{name: name for name in _FIELDS},
    **{field.metadata["pulsar"]: name for name, field in _FIELDS.items() if field.metadata["pulsar"]},
    **{f"auto_scale.{name}": f"auto_scale.{name}" for name in FIELDS},
    **{pulsar: f"auto_scale.{name}" for pulsar, name in BROKER_KEYS.items()},
}
"""Every accepted name of a setting -> its own name."""
_VARIABLES: Mapping[str, str] = {name.lower(): own for name, own in _NAMES.items()}


def _resolve_key(key: str, where: str) -> str:
    name = _NAMES.get(key)
    if name is None:
        near = difflib.get_close_matches(key, _NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "`anabranch config` lists all settings"
        raise InvalidConfigurationError(f"{where}unknown setting {key!r}; {hint}")
    return name


def _read_file(file: str | os.PathLike[str], where: str) -> dict[str, object]:
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
    except OSError as error:
        raise InvalidConfigurationError(f"cannot read {os.fspath(file)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigurationError(f"{os.fspath(file)} is not UTF-8: {error}") from error
    suffix = os.path.splitext(file)[1]
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if suffix == ".toml":
            raise InvalidConfigurationError(f"{os.fspath(file)} is not valid TOML: {error}") from error
        return _read_properties(text, where)
    # Numbers and truth values look alike in both formats; broker.conf has neither quotes nor tables.
    is_plain = all(isinstance(value, bool | int | float) for value in table.values())
    if suffix in (".conf", ".properties") and is_plain:
        return _read_properties(text, where)
    return _flatten(table, where)


def _read_properties(text: str, where: str) -> dict[str, object]:
    found = sort_out(parse_properties(text), _NAMES, where)
    given: dict[str, object] = {}
    for key, value in found.given.items():
        name = _resolve_key(key, where)
        empty = _FIELDS[name].metadata.get("empty") if name in _FIELDS else None
        # As in Pulsar, an empty value leaves the default, and switches a port off.
        if value or empty is not None:
            given[name] = parse_setting(name, value)
    if found.without_effect:
        _logger.warning("%sthese settings have no effect here: %s", where, ", ".join(found.without_effect))
    return given


def _flatten(table: Mapping[str, object], where: str) -> dict[str, object]:
    given: dict[str, object] = {}
    for key, value in table.items():
        if key == "auto_scale" and isinstance(value, Mapping):
            for inner, inner_value in value.items():
                given[_resolve_key(f"auto_scale.{inner}", where)] = inner_value
        else:
            given[_resolve_key(key, where)] = value
    return given


def _build(given: Mapping[str, object]) -> BrokerConfig:
    plain: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    for name, value in given.items():
        table, _, field = name.rpartition(".")
        if table:
            policy[field] = coerce(field, value)
        else:
            if value == "" and _FIELDS[name].metadata.get("empty") is not None:
                value = _FIELDS[name].metadata.get("empty")
            is_float = isinstance(_FIELDS[name].default, float)
            plain[name] = float(value) if is_float and isinstance(value, int) else value
    return BrokerConfig(**plain, auto_scale=dataclasses.replace(AutoScalePolicy(), **policy))


_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": 2**30}


def parse_setting(name: str, text: str) -> object:
    """Return the value of a setting written on the command line, in the type of its default."""
    table, _, field = name.rpartition(".")
    default = getattr(AutoScalePolicy(), field) if table else _FIELDS[name].default
    if not text and not table and _FIELDS[name].metadata.get("empty") is not None:
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfigurationError(f"setting {name} is true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, int | float):
        return parse_number(f"setting {name}", text)
    return text


def parse_number(subject: str, text: str) -> int | float:
    """Return a number as a user writes it, also with a unit, like 64MiB; raises InvalidConfigurationError."""
    digits, unit = (text[:-3], _UNITS[text[-3:]]) if text[-3:] in _UNITS else (text, 1)
    try:
        return (int(digits) if digits.lstrip("+-").replace("_", "").isdigit() else float(digits)) * unit
    except ValueError as error:
        raise InvalidConfigurationError(f"{subject} is a number, not {text!r}") from error


def _toml(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    # Digits are grouped from 10,000 on, so that byte sizes are readable and ports are plain.
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else repr(value)
