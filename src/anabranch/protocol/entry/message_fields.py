"""The fields of one message, which the header of a message and the metadata of an entry share."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from anabranch.protocol.pb import pulsar_pb2 as pb


def set_fields(
    header: pb.MessageMetadata | pb.SingleMessageMetadata,
    key: str | bytes | None,
    ordering_key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int,
    null_value: bool,
) -> None:
    """Write the fields of a message into its header, or into the metadata of its own entry."""
    if key is not None:
        text, encoded = key_text(key)
        header.partition_key = text.decode()
        if encoded:
            header.partition_key_b64_encoded = True
    if ordering_key is not None:
        header.ordering_key = ordering_key
    for name, text_value in (properties or {}).items():
        header.properties.add(key=name, value=text_value)
    if event_time_ms:
        header.event_time = event_time_ms
    if null_value:
        header.null_value = True


def key_text(key: str | bytes) -> tuple[bytes, bool]:
    """Return a key as the wire's text in UTF-8, and whether that text is Base64."""
    if isinstance(key, str):
        return key.encode(), False
    try:
        key.decode()
    except UnicodeDecodeError:
        return b64encode(key), True
    return key, False
