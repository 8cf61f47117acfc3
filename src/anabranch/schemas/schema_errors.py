"""Errors about schemas and the values that they describe."""

from __future__ import annotations

from typing import Any

from anabranch.errors import AnabranchError, IncompatibleSchemaError, InvalidConfigurationError


class InvalidSchemaError(IncompatibleSchemaError, InvalidConfigurationError):
    """The definition of a schema cannot be read; the text says what is wrong with it."""


class SchemaError(AnabranchError, ValueError):
    """A value does not fit its schema: bytes that cannot be decoded, or a value that cannot be encoded.

    `topic` and `message_id` name the message whose bytes are bad; it can still be acknowledged.

    Example:
        try:
            Schema.string().decode(b"\\xff")
        except SchemaError as error:
            print(error)
    """

    def __init__(self, text: str, topic: str = "", message_id: Any = None) -> None:
        super().__init__(text)
        self.topic = topic
        self.message_id = message_id
