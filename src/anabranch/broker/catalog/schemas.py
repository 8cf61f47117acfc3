"""Schemas of topics: versions in the order of their registration, kept in the metadata store.

All segments of a topic and the classic topic of the same name share one list. Policies of the topic, of its
namespace and of the broker decide which schemas producers may add and with which ones consumers may read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from struct import Struct

from anabranch.aio import KeyedLocks
from anabranch.errors import IncompatibleSchemaError
from anabranch.metadata import records
from anabranch.metadata.records import NamespaceRecord
from anabranch.metadata.schemas import (
    SCHEMAS,
    SchemaIndexRecord,
    SchemaStore,
    SchemaVersionRecord,
    StoredSchema,
    digest,
)
from anabranch.model.names import TopicName
from anabranch.protocol.limits import SCHEMA_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs
from anabranch.schemas.compatibility import Strategy, check_compatible, compares, consumer_strategy
from anabranch.schemas.definitions import Definition, check_definition, digest_of
from anabranch.schemas.policies import AUTO_UPDATE, ENFORCED, SchemaPolicy, policy_of

VERSION_BYTES_MAX = 2 * SCHEMA_BYTES_MAX
"""Most bytes of a schema with its name and properties."""
VERSIONS_MAX = 1000
TOPIC_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of all versions of a topic."""
CACHE_BYTES = 16 * 1024 * 1024

_VERSION = Struct(">q")
_BYTES = pb.Schema.Type.Value("None")
_NO_SCHEMA = (_BYTES, pb.Schema.AutoConsume)
"""Schema types of clients without a schema of their own: plain bytes, or the schema of the topic."""


class SchemaRegistry:
    """Finds and registers schemas; a version is a number, as eight bytes on the wire."""

    def __init__(self, schemas: SchemaStore, default: SchemaPolicy = SchemaPolicy()) -> None:  # noqa: B008 - frozen
        """`default` applies where neither a topic nor its namespace has a policy."""
        self._schemas = schemas
        self.default = default
        self._cached: OrderedDict[str, StoredSchema] = OrderedDict()
        self._cached_bytes = 0
        self._loading = KeyedLocks()
        self.exist = True
        """False if no topic of the cluster has a schema, so that producers without one open at once."""
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Find out whether any topic has a schema, and notice the first one."""
        store, self.exist = self._schemas.store, False

        def noticed(path: str) -> None:
            self.exist = True

        self._unwatch = store.watch(SCHEMAS, noticed)
        if await store.children(SCHEMAS):
            self.exist = True

    def stop(self) -> None:
        self._unwatch()

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[StoredSchema, bytes] | None:
        """Return a schema and its version, by default the newest; None if there is none."""
        index = await self._schemas.load_index(topic)
        if version is None:
            number = -1 if index is None or not index.living else index.living[-1]
        elif len(version) == _VERSION.size:
            (number,) = _VERSION.unpack(version)
        else:
            raise IncompatibleSchemaError(
                f"{version.hex() or 'an empty text'} is not a schema version; send {_VERSION.size} bytes"
            )
        if index is None or not 0 <= number < len(index.versions) or index.versions[number].deleted:
            return None
        schema = await self._load(self._schemas.path(topic, index, number))
        return None if schema is None else (schema, _VERSION.pack(number))

    async def all(self, topic: TopicName) -> list[tuple[StoredSchema, bytes]]:
        """Return the versions since the last deletion, oldest first."""
        index = await self._schemas.load_index(topic)
        if index is None:
            return []
        numbers = map(_VERSION.pack, index.living)
        return [found for number in numbers if (found := await self.get(topic, number)) is not None]

    async def number_of(self, topic: TopicName, schema: pb.Schema) -> int | None:
        """Return the number of a schema that the topic has; None if it does not have it."""
        index = await self._schemas.load_index(topic)
        new = _definition(schema)
        check_definition(new)
        stored = StoredSchema(schema.name, schema.type, schema.schema_data, dict(new.properties), 0)
        return None if index is None else index.number_of(digest(stored), digest_of(new))

    async def check_next(self, topic: TopicName, schema: pb.Schema, policy: SchemaPolicy) -> None:
        """Raise IncompatibleSchemaError unless a schema may become the next version."""
        index = await self._schemas.load_index(topic)
        new = _definition(schema)
        check_definition(new)
        if index is not None and await self.number_of(topic, schema) is None:
            await self._check_next(topic, index, policy, new)

    async def policy(self, topic: TopicName) -> SchemaPolicy:
        """Return the policy of the topic now."""
        index = await self._schemas.load_index(topic)
        path = records.namespace_path(records.NAMESPACES, topic.namespace_name)
        namespace = await self._schemas.read(NamespaceRecord, path) or NamespaceRecord()
        return policy_of({} if index is None else index.policies, namespace.policies, self.default)

    async def admit_producer(self, topic: TopicName, schema: pb.Schema | None, now_ms: int) -> bytes:
        """Return the version of a producer's schema, which is added if it may be; empty without a schema."""
        policy = await self.policy(topic)
        typed = schema is not None and schema.type not in _NO_SCHEMA
        # Bytes have a version, too, unless the topic has values of another type.
        plain = schema is not None and schema.type == _BYTES and await self._has_only_bytes(topic)
        if schema is not None and (typed or plain):
            return await self.register(topic, schema, now_ms, policy, administrator=False)
        if policy.enforced and await self.get(topic, None) is not None:
            raise IncompatibleSchemaError(
                f"{whole_topic(topic)} has a schema, and {ENFORCED} refuses producers without one; "
                "give this one a schema"
            )
        return b""

    async def _has_only_bytes(self, topic: TopicName) -> bool:
        newest = await self.get(topic, None)
        return newest is None or newest[0].type == _BYTES

    async def admit_consumer(self, topic: TopicName, schema: pb.Schema, now_ms: int, *, idle: bool) -> None:
        """Check that a consumer can read with its schema; an idle topic without a schema gets this one."""
        if schema.type in _NO_SCHEMA:
            return
        policy = await self.policy(topic)
        index = await self._schemas.load_index(topic)
        if index is None or not index.living:
            if idle:
                await self.register(topic, schema, now_ms, policy, administrator=False)
            elif policy.strategy != "ALWAYS_COMPATIBLE":
                raise IncompatibleSchemaError(
                    f"{whole_topic(topic)} is in use without a schema, so a consumer cannot read it with "
                    "one; consume bytes, or let a producer or an administrator add the schema first"
                )
            return
        new = _definition(schema)
        check_definition(new)
        strategy = consumer_strategy(policy.strategy)
        every = compares(strategy) == "all" or strategy == "ALWAYS_INCOMPATIBLE"
        await self._compare(topic, index, strategy, new, index.living if every else index.living[-1:])

    async def register(
        self,
        topic: TopicName,
        schema: pb.Schema,
        now_ms: int,
        policy: SchemaPolicy,
        *,
        administrator: bool = True,
    ) -> bytes:
        """Return the version of a schema, which is added if it is new; raises IncompatibleSchemaError."""
        new = _definition(schema)
        check_definition(new)
        stored = StoredSchema(schema.name, schema.type, schema.schema_data, dict(new.properties), now_ms)

        async def check(index: SchemaIndexRecord, entry: SchemaVersionRecord) -> None:
            check_fits(str(whole_topic(topic)), index, entry)
            if not administrator and not policy.auto_update:
                raise IncompatibleSchemaError(
                    f"{whole_topic(topic)} has no such schema, and {AUTO_UPDATE} does not let producers add "
                    "one; an administrator can"
                )
            await self._check_next(topic, index, policy, new)

        return _VERSION.pack(await self._schemas.add(topic, stored, digest_of(new), check))

    async def _check_next(
        self, topic: TopicName, index: SchemaIndexRecord, policy: SchemaPolicy, new: Definition
    ) -> None:
        which = compares(policy.strategy)
        if which != "none" and index.living:
            numbers = index.living if which == "all" else index.living[-1:]
            await self._compare(topic, index, policy.strategy, new, numbers)

    async def _compare(
        self,
        topic: TopicName,
        index: SchemaIndexRecord,
        strategy: Strategy,
        new: Definition,
        numbers: range,
    ) -> None:
        for number in numbers:
            known = await self._load(self._schemas.path(topic, index, number))
            if known is not None:
                try:
                    check_compatible(strategy, new, [definition_in(known)])
                except IncompatibleSchemaError as error:
                    raise IncompatibleSchemaError(
                        f"{whole_topic(topic)}, version {number}: {error}"
                    ) from error

    async def _load(self, path: str) -> StoredSchema | None:
        """Load a version; callers that ask for the same one at once share the read."""
        async with self._loading.held(path):
            found = self._cached.pop(path, None)
            if found is None:
                found = await self._schemas.load_version(path)
                self._cached_bytes += 0 if found is None else len(found.data)
            if found is not None:
                self._cached[path] = found
            while self._cached_bytes > CACHE_BYTES:
                _, oldest = self._cached.popitem(last=False)
                self._cached_bytes -= len(oldest.data)
            return found


def whole_topic(name: TopicName) -> TopicName:
    """Return the topic that owns the schemas of a segment or partition, as its users call it."""
    return name.topic if name.is_segment else name.partitioned_topic


def check_fits(topic: str, index: SchemaIndexRecord, entry: SchemaVersionRecord) -> None:
    """Raise IncompatibleSchemaError unless the schema may become the next version."""
    stored = sum(known.size_bytes for known in index.versions)
    if entry.size_bytes > VERSION_BYTES_MAX:
        raise IncompatibleSchemaError(
            f"a schema of {topic} has {entry.size_bytes} bytes; at most {VERSION_BYTES_MAX} are stored"
        )
    if len(index.versions) >= VERSIONS_MAX or stored + entry.size_bytes > TOPIC_BYTES_MAX:
        raise IncompatibleSchemaError(
            f"{topic} has {len(index.versions)} schemas of {stored} bytes; at most {VERSIONS_MAX} schemas of "
            f"{TOPIC_BYTES_MAX} bytes are stored, delete the topic to start again"
        )


def _type_name(number: int) -> str:
    try:
        return pb.Schema.Type.Name(pb.Schema.Type.ValueType(number))
    except ValueError:
        return str(number)


def _definition(schema: pb.Schema) -> Definition:
    properties = {pair.key: pair.value for pair in schema.properties}
    return Definition(_type_name(schema.type), schema.schema_data, properties)


def definition_in(schema: StoredSchema) -> Definition:
    """Return the definition of a stored version."""
    return Definition(_type_name(schema.type), schema.data, schema.properties)


def to_wire(schema: StoredSchema) -> pb.Schema:
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.ValueType(schema.type),
        properties=pairs(schema.properties),
    )
