"""Definitions of Pulsar's native protobuf schemas: descriptors of files, in JSON."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from anabranch.schemas.schema_errors import InvalidSchemaError


class MessageType(NamedTuple):
    """A message type: the serialised FileDescriptorSet that defines it, and its full name."""

    files: bytes
    name: str

    @classmethod
    def registered(cls, definition: bytes) -> MessageType:
        """Read the definition of Pulsar's native protobuf schema; raises InvalidSchemaError."""
        try:
            found = json.loads(definition)
            return cls(b64decode(found["fileDescriptorSet"]), found["rootMessageTypeName"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidSchemaError(f"the registered protobuf schema cannot be read: {error}") from error

    def descriptor(self) -> Descriptor:
        """Return the type itself; raises InvalidSchemaError if the files do not define it."""
        pool = descriptor_pool.DescriptorPool()
        try:
            waiting = list(descriptor_pb2.FileDescriptorSet.FromString(self.files).file)
            added: set[str] = set()
            # A file comes after the files that it imports.
            while waiting:
                ready = [file for file in waiting if added.issuperset(file.dependency)]
                if not ready:
                    raise InvalidSchemaError(
                        f"the descriptor set lacks {waiting[0].dependency[0]}; make it with --include_imports"
                    )
                for file in ready:
                    pool.Add(file)
                    added.add(file.name)
                waiting = [file for file in waiting if file.name not in added]
            return pool.FindMessageTypeByName(self.name)
        except (DecodeError, KeyError, TypeError) as error:
            raise InvalidSchemaError(
                f"the descriptor set does not define the message {self.name}: {error}"
            ) from error


def definition_of(descriptor: Any) -> bytes:
    """Return the definition of a message type, as Pulsar's clients write it."""
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(file: Any) -> None:
        if file.name not in files:
            for imported in file.dependencies:
                add(imported)
            copied = descriptor_pb2.FileDescriptorProto()
            file.CopyToProto(copied)
            files[file.name] = copied

    add(descriptor.file)
    serialised = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)
    return json.dumps(
        {
            "fileDescriptorSet": b64encode(serialised).decode(),
            "rootMessageTypeName": descriptor.full_name,
            "rootFileDescriptorName": descriptor.file.name,
        },
        separators=(",", ":"),
    ).encode()
