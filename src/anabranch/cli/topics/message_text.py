"""A received message as `anabranch consume` prints it. Pure, and never fails for any key or value."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

from anabranch.client.message import Message

Output = Literal["text", "json", "raw", "hex", "base64"]

TOMBSTONE = "(null)"
"""The text of a message without a value."""


def shown(message: Message[Any], output: Output) -> bytes:
    """Return the bytes to print for one message; `raw` is the value alone, the others are a line."""
    value: bytes | None = message.value
    if output == "raw":
        return value or b""
    if output == "json":
        return f"{json.dumps(_fields(message, value))}\n".encode()
    text = TOMBSTONE if value is None else _text(value, output)
    return (text if message.key is None else f"{message.key}\t{text}").encode() + b"\n"


def _text(value: bytes, output: Output) -> str:
    if output == "hex":
        return value.hex()
    if output == "base64":
        return base64.b64encode(value).decode()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _fields(message: Message[Any], value: bytes | None) -> dict[str, Any]:
    return {
        "id": str(message.id),
        "key": message.key,
        "value": None if value is None else _json_value(value),
        "properties": dict(message.properties),
        "publishTime": message.publish_time.isoformat(),
        "redeliveryCount": message.redelivery_count,
    }


def _json_value(value: bytes) -> str | dict[str, str]:
    """Return bytes as text, or as base64 if they are not text, as `pipeline replay --print` does."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
