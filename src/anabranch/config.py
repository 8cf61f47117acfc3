"""The settings of a broker: frozen, validated once, passed down, never global.

The declaration of a setting contains its description, and the default configuration file is generated from
the declarations. Files are TOML; a setting may have its own name or its name in Pulsar's broker.conf. Knows
nothing of the modules that use a setting.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.errors import InvalidConfigurationError
from anabranch.model.policy import BROKER_KEYS, AutoScalePolicy, check_policy, coerce

KIB, MIB = 2**10, 2**20
LOG_LEVELS = ("debug", "info", "warning", "error")


def _setting(
    default: Any,
    about: str,
    *,
    pulsar: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field with its description for the default configuration file and its allowed values."""
    return dataclasses.field(
        default=default, metadata={"about": about, "pulsar": pulsar, "low": low, "high": high}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of one broker process."""

    host: str = _setting(
        "127.0.0.1", "Address to listen on, for both ports. 0.0.0.0 listens everywhere.", pulsar="bindAddress"
    )
    port: int = _setting(
        6650,
        "Port of the binary protocol. 0 picks a free one.",
        pulsar="brokerServicePort",
        low=0,
        high=65535,
    )
    http_port: int = _setting(
        8080,
        "Port of the admin API and metrics. 0 picks a free one.",
        pulsar="webServicePort",
        low=0,
        high=65535,
    )
    data: str = _setting("./anabranch-data", "Directory of all stored data; used by one broker at a time.")
    workers: int = _setting(
        1,
        "Broker processes on one data directory, to use several cores. A process that dies is replaced.",
        low=1,
        high=64,
    )
    lease_s: float = _setting(
        5.0,
        "A worker that is silent for this long is killed, and the other workers take over its stores.",
        low=0.2,
    )
    cluster: str = _setting("standalone", "Name of the cluster in the admin API.", pulsar="clusterName")
    advertised_host: str | None = _setting(
        None,
        "Host name that clients connect to; the listen address if unset.",
        pulsar="advertisedAddress",
    )
    max_message_bytes: int = _setting(
        5 * MIB, "Largest entry a producer may send.", pulsar="maxMessageSize", low=KIB, high=1024 * MIB
    )
    keep_alive_s: float = _setting(
        30.0,
        "The broker pings a connection that is silent for this long, and closes it after twice as long.",
        pulsar="keepAliveIntervalSeconds",
        low=0.1,
    )
    connections_max: int = _setting(
        10_000,
        "Most connections at once; further connections are refused.",
        pulsar="brokerMaxConnections",
        low=1,
    )
    deduplication: bool = _setting(
        True,
        "Store each (producer, sequence id) once, also when a producer sends it again to another segment.",
        pulsar="brokerDeduplicationEnabled",
    )
    auto_create_topics: bool = _setting(
        True, "Create a topic when a client first uses it.", pulsar="allowAutoTopicCreation"
    )
    bucket_budget: int = _setting(
        4,
        "Entry buckets of a new topic over all its segments; so many consumers can share it in key order.",
        pulsar="scalableTopicEntryBucketBudget",
        low=1,
        high=1024,
    )
    auto_scale_interval_s: float = _setting(
        60.0,
        "Interval between two decisions of auto-scaling for a topic.",
        pulsar="scalableTopicAutoScaleIntervalSeconds",
        low=0.05,
    )
    load_report_interval_s: float = _setting(
        10.0,
        "Period over which rates are averaged.",
        pulsar="scalableTopicLoadReportIntervalSeconds",
        low=0.05,
    )
    consumer_grace_s: float = _setting(
        60.0,
        "How long a stream consumer without a connection keeps its segments.",
        pulsar="scalableTopicConsumerSessionGracePeriodSeconds",
        low=0,
    )
    segment_retention_s: float = _setting(
        604_800.0,
        "Messages stay for this long, and until every subscription acknowledged them. -1 is for ever.",
        low=-1,
    )
    max_unacked_per_consumer: int = _setting(
        50_000,
        "Most unacknowledged messages of one shared consumer. 0 is no limit.",
        pulsar="maxUnackedMessagesPerConsumer",
        low=0,
    )
    max_unacked_per_subscription: int = _setting(
        200_000,
        "Most unacknowledged messages of all consumers of a shared subscription. 0 is no limit.",
        pulsar="maxUnackedMessagesPerSubscription",
        low=0,
    )
    dispatch_max_entries: int = _setting(
        100, "Most entries of one read for a subscription.", pulsar="dispatcherMaxReadBatchSize", low=1
    )
    dispatch_max_bytes: int = _setting(
        5 * MIB, "Most bytes of one read for a subscription.", pulsar="dispatcherMaxReadSizeBytes", low=1
    )
    publish_pending_bytes_max: int = _setting(
        64 * MIB,
        "Bytes of one connection that wait for the disk; above this, reading from the connection pauses.",
        low=64 * KIB,
    )
    cache_bytes: int = _setting(64 * MIB, "Memory for recently written or read entries.", low=0)
    journal_bytes_max: int = _setting(
        256 * MIB, "Size of the journal at which a checkpoint starts the next journal file.", low=4 * KIB
    )
    log_level: str = _setting(
        "info", "Lowest level of log messages on standard error: debug, info, warning, error."
    )
    auto_scale: AutoScalePolicy = dataclasses.field(default_factory=AutoScalePolicy)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "auto_scale":
                _check_value(field, getattr(self, field.name))
        wrong = check_policy(self.auto_scale)
        if wrong:
            raise InvalidConfigurationError(f"the auto-scale settings cannot be used: {'; '.join(wrong)}")
        if self.log_level.lower() not in LOG_LEVELS:
            raise InvalidConfigurationError(
                f"setting log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}"
            )
        for name in ("host", "data", "cluster"):
            if not getattr(self, name):
                raise InvalidConfigurationError(f"setting {name} must not be empty")


def load_config(file: str | os.PathLike[str] | None = None, sets: Iterable[str] = ()) -> BrokerConfig:
    """Defaults, then the file, then each `key=value`; raises InvalidConfigurationError."""
    given: dict[str, object] = {}
    if file is not None:
        given.update(_flatten(_read_file(file), f"{os.fspath(file)}: "))
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidConfigurationError(f"--set {text!r}: write it as key=value")
        name = _resolve_key(key.strip(), "--set: ")
        given[name] = _parse(name, value.strip())
    return _build(given)


def default_text() -> str:
    """The default configuration file: every setting with its description and value."""
    lines = [
        "# Every setting of an Anabranch broker with its default value.",
        "# Pass a file like this with `anabranch serve --config FILE`, one setting with `--set key=value`.",
        "# A name of Pulsar's broker.conf may be used instead of the name here.",
    ]
    for field in _plain_fields():
        pulsar = field.metadata["pulsar"]
        lines += ["", f"# {field.metadata['about']}", *([f"# In Pulsar: {pulsar}"] if pulsar else [])]
        value = _toml(field.default)
        lines.append(f"# {field.name} =" if value is None else f"{field.name} = {value}")
    lines += [
        "",
        "# Limits and thresholds of auto-scaling. Namespaces and topics may override each.",
    ]
    lines += ["[auto_scale]"]
    names = {field: pulsar for pulsar, field in BROKER_KEYS.items()}
    for field in dataclasses.fields(AutoScalePolicy):
        lines.append(f"{field.name} = {_toml(field.default)}  # {names[field.name]}")
    return "\n".join(lines) + "\n"


def _plain_fields() -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(BrokerConfig) if field.name != "auto_scale"]


_FIELDS = {field.name: field for field in _plain_fields()}
_POLICY_FIELDS = tuple(field.name for field in dataclasses.fields(AutoScalePolicy))
_NAMES: Mapping[str, str] = {
    **{name: name for name in _FIELDS},
    **{field.metadata["pulsar"]: name for name, field in _FIELDS.items() if field.metadata["pulsar"]},
    **{f"auto_scale.{name}": f"auto_scale.{name}" for name in _POLICY_FIELDS},
    **{pulsar: f"auto_scale.{name}" for pulsar, name in BROKER_KEYS.items()},
}
"""Every accepted name of a setting -> its own name."""


def _resolve_key(key: str, where: str) -> str:
    name = _NAMES.get(key)
    if name is None:
        near = difflib.get_close_matches(key, _NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "`anabranch config` lists all settings"
        raise InvalidConfigurationError(f"{where}unknown setting {key!r}; {hint}")
    return name


def _read_file(file: str | os.PathLike[str]) -> dict[str, object]:
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise InvalidConfigurationError(f"cannot read {os.fspath(file)}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigurationError(f"{os.fspath(file)} is not valid TOML: {error}") from error


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
            plain[name] = float(value) if _is_float(name) and isinstance(value, int) else value
    return BrokerConfig(**plain, auto_scale=dataclasses.replace(AutoScalePolicy(), **policy))


_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": 2**30}


def _parse(name: str, text: str) -> object:
    """The value of a setting written on the command line, in the type of its default."""
    table, _, field = name.rpartition(".")
    default = getattr(AutoScalePolicy(), field) if table else _FIELDS[name].default
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfigurationError(f"setting {name} is true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, int | float):
        digits, unit = (text[:-3], _UNITS[text[-3:]]) if text[-3:] in _UNITS else (text, 1)
        try:
            return (int(digits) if digits.lstrip("+-").replace("_", "").isdigit() else float(digits)) * unit
        except ValueError as error:
            raise InvalidConfigurationError(f"setting {name} is a number, not {text!r}") from error
    return text


def _is_float(name: str) -> bool:
    return isinstance(_FIELDS[name].default, float)


def _check_value(field: dataclasses.Field[Any], value: object) -> None:
    default = field.default
    if default is None and value is None:
        return
    kind = str if default is None else type(default)
    names = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    right = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not right or (kind is not bool and isinstance(value, bool)):
        raise InvalidConfigurationError(f"setting {field.name} is {names[kind]}, not {value!r}")
    low, high = field.metadata["low"], field.metadata["high"]
    if isinstance(value, int | float) and not (
        (low is None or value >= low) and (value <= high if high is not None else value < float("inf"))
    ):
        allowed = f"{low:g} to {high:g}" if high is not None else f"at least {low:g}"
        raise InvalidConfigurationError(f"setting {field.name} must be {allowed}, not {value}")


def _toml(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    # Digits are grouped from 10,000 on, so that byte sizes are readable and ports are plain.
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else repr(value)
