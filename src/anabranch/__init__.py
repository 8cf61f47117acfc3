"""Anabranch: elastic ordered streams for Python.

Everything public is listed in `__all__` and imported when it is first used, so that `import anabranch` costs
next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.admin.client.asynchronous.client import AsyncAdminClient
    from anabranch.admin.client.blocking.client import AdminClient
    from anabranch.aio import Backoff
    from anabranch.apps import App
    from anabranch.client.api import AsyncClient
    from anabranch.client.blocking import (
        CheckpointConsumer,
        Client,
        Producer,
        QueueConsumer,
        StreamConsumer,
        TopicsConsumer,
    )
    from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
    from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
    from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
    from anabranch.client.consume.consumers.topics_consumer import AsyncTopicsConsumer
    from anabranch.client.consume.handlers.run_options import RunStatistics
    from anabranch.client.encryption import Decrypt, Encrypt, EncryptionKey, PemFiles
    from anabranch.client.interceptors import Interceptor, SentMessage
    from anabranch.client.message import Message
    from anabranch.client.options import Batching, DeadLetter
    from anabranch.client.produce.producer import AsyncProducer
    from anabranch.client.schema import Schema
    from anabranch.credentials.authentication import (
        Authentication,
        AuthenticationBasic,
        AuthenticationTLS,
        AuthenticationToken,
    )
    from anabranch.credentials.oauth2 import AuthenticationOauth2
    from anabranch.errors import AnabranchError
    from anabranch.model.checkpoint import Checkpoint
    from anabranch.model.ids import MessageId
    from anabranch.protocol.encryption import EncryptionContext
    from anabranch.schemas.schema_errors import SchemaError

__version__ = "0.1.0"

_HOME = {
    "AdminClient": "anabranch.admin.client.blocking.client",
    "AnabranchError": "anabranch.errors",
    "App": "anabranch.apps",
    "AsyncAdminClient": "anabranch.admin.client.asynchronous.client",
    "AsyncCheckpointConsumer": "anabranch.client.consume.consumers.checkpoint_consumer",
    "AsyncClient": "anabranch.client.api",
    "AsyncProducer": "anabranch.client.produce.producer",
    "AsyncQueueConsumer": "anabranch.client.consume.consumers.queue_consumer",
    "AsyncStreamConsumer": "anabranch.client.consume.consumers.stream_consumer",
    "AsyncTopicsConsumer": "anabranch.client.consume.consumers.topics_consumer",
    "Authentication": "anabranch.credentials.authentication",
    "AuthenticationBasic": "anabranch.credentials.authentication",
    "AuthenticationOauth2": "anabranch.credentials.oauth2",
    "AuthenticationTLS": "anabranch.credentials.authentication",
    "AuthenticationToken": "anabranch.credentials.authentication",
    "Backoff": "anabranch.aio",
    "Batching": "anabranch.client.options",
    "Checkpoint": "anabranch.model.checkpoint",
    "CheckpointConsumer": "anabranch.client.blocking",
    "Client": "anabranch.client.blocking",
    "DeadLetter": "anabranch.client.options",
    "Decrypt": "anabranch.client.encryption",
    "Encrypt": "anabranch.client.encryption",
    "EncryptionContext": "anabranch.protocol.encryption",
    "EncryptionKey": "anabranch.client.encryption",
    "Interceptor": "anabranch.client.interceptors",
    "Message": "anabranch.client.message",
    "MessageId": "anabranch.model.ids",
    "PemFiles": "anabranch.client.encryption",
    "Producer": "anabranch.client.blocking",
    "QueueConsumer": "anabranch.client.blocking",
    "RunStatistics": "anabranch.client.consume.handlers.run_options",
    "Schema": "anabranch.client.schema",
    "SentMessage": "anabranch.client.interceptors",
    "SchemaError": "anabranch.schemas.schema_errors",
    "StreamConsumer": "anabranch.client.blocking",
    "TopicsConsumer": "anabranch.client.blocking",
}

__all__ = [
    "AdminClient",
    "AnabranchError",
    "App",
    "AsyncAdminClient",
    "AsyncCheckpointConsumer",
    "AsyncClient",
    "AsyncProducer",
    "AsyncQueueConsumer",
    "AsyncStreamConsumer",
    "AsyncTopicsConsumer",
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "Backoff",
    "Batching",
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "DeadLetter",
    "Decrypt",
    "Encrypt",
    "EncryptionContext",
    "EncryptionKey",
    "Interceptor",
    "Message",
    "MessageId",
    "PemFiles",
    "Producer",
    "QueueConsumer",
    "RunStatistics",
    "Schema",
    "SchemaError",
    "SentMessage",
    "StreamConsumer",
    "TopicsConsumer",
]


if not TYPE_CHECKING:
    # Type checkers must not see this function, or they would accept every misspelt name.
    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
