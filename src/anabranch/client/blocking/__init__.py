"""The same API for code without an event loop.

One daemon thread runs one event loop for a client; it starts with the first call, in the process that makes
the call. Every object here wraps its asyncio twin, forwards calls to it, and may be used from any thread. Two
buffers save crossing threads for each message: sends queue up in the caller's thread, and an iteration takes
many messages at once. A test holds every signature equal to that of the twin.
"""

from anabranch.client.blocking.client import Client
from anabranch.client.blocking.consumers import CheckpointConsumer
from anabranch.client.blocking.producer import Producer
from anabranch.client.blocking.subscribers import QueueConsumer, StreamConsumer
from anabranch.client.blocking.topics import TopicsConsumer

__all__ = ["CheckpointConsumer", "Client", "Producer", "QueueConsumer", "StreamConsumer", "TopicsConsumer"]
