"""The options that describe how the values of a topic are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.given import GivenOptions, word

BadRows = Literal["fail", "null", "column"]
REGISTERED = "registered"

CORRUPT = "_corrupt_record"
"""The column with the bytes of bad values, named as in Spark's own sources."""

VALUE_OPTIONS = ("valueFormat", "valueSchema", "valueDescriptor", "valueMessage", "badRows")


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The options that describe values: `valueFormat`, `valueSchema` and their companions."""

    format: str | None
    schema: str | None
    bad_rows: BadRows
    descriptor: str | None = None
    """Path of a file with a serialised FileDescriptorSet."""
    message: str | None = None

    @property
    def registered(self) -> bool:
        return self.schema is not None and self.schema.lower() == REGISTERED


def read_value_options(options: GivenOptions) -> ValueOptions | None:
    """Return the options of values, or None if none is given; raises InvalidConfigurationError."""
    form = options.read("valueFormat", lambda text: word(text, ("json", "avro", "protobuf")))
    found = ValueOptions(
        form,
        options.text("valueSchema"),
        options.read("badRows", lambda text: word(text, ("fail", "null", "column")), "fail"),
        options.text("valueDescriptor"),
        options.text("valueMessage"),
    )
    if form is not None or found.registered:
        return found
    given = [name for name in VALUE_OPTIONS if options.text(name) is not None]
    if given:
        raise InvalidConfigurationError(
            f"option {given[0]} needs valueFormat=json, avro or protobuf, or valueSchema=registered"
        )
    return None
