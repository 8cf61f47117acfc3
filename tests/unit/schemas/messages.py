"""Protobuf messages for tests, made without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from anabranch.schemas.protobuf import definition_of


def message_class(name: str, *fields: str) -> Any:
    """The class of a message with fields of text."""
    package, _, local = name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"{local}.proto", package=package, syntax="proto3")
    message = file.message_type.add(name=local)
    for number, field in enumerate(fields, 1):
        message.field.add(name=field, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def message_definition(name: str, *fields: str) -> bytes:
    return definition_of(message_class(name, *fields).DESCRIPTOR)
