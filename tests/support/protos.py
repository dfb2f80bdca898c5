"""The proto files as Google's protobuf sees them: the second opinion on what is generated from them."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import betterproto2
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

import mesh_pilot.api
from mesh_pilot.api.message_pool import default_message_pool

PROTO = Path(__file__).parents[2] / "proto"

Files = dict[str, descriptor_pb2.FileDescriptorProto]


@cache
def compile_protos(into: Path) -> Files:
    from grpc_tools import protoc

    includes = Path(protoc.__file__).parent / "_proto"
    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    output = into / "files.bin"
    arguments = ["protoc", f"-I{PROTO}", f"-I{includes}", "--include_imports", f"--descriptor_set_out={output}"]
    assert protoc.main([*arguments, *sources]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    return {file.name: file for file in files.file}


def compiled(into: Path) -> Files:
    """Every proto file and what it imports, by path; needs the ``proto`` extra.

    Without it the test is skipped, in CI it fails.
    """
    if not os.environ.get("CI"):
        pytest.importorskip("grpc_tools", reason="the proto extra is not installed")
    return compile_protos(into)


def message_classes(files: Files) -> dict[str, type[Message]]:
    """Google's classes for every Istio message, by full name, map entries left out."""
    pool = descriptor_pool.DescriptorPool()
    for file in _in_order(files):
        pool.Add(file)
    found = {}
    for file in files.values():
        if file.name.startswith("google/protobuf/"):
            continue
        for name in pool.FindFileByName(file.name).message_types_by_name.values():
            for descriptor in _nested(name):
                found[descriptor.full_name] = message_factory.GetMessageClass(descriptor)
    return found


@cache
def _import_everything() -> None:
    for module in pkgutil.walk_packages(mesh_pilot.api.__path__, "mesh_pilot.api."):
        importlib.import_module(module.name)


def our_class(name: str) -> type[betterproto2.Message]:
    """The generated class of a message, by full name."""
    _import_everything()
    return default_message_pool.url_to_type[f"type.googleapis.com/{name}"]


def _in_order(files: Files) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Files after what they import."""
    done: set[str] = set()

    def visit(name: str) -> Iterator[descriptor_pb2.FileDescriptorProto]:
        if name not in done:
            done.add(name)
            for dependency in files[name].dependency:
                yield from visit(dependency)
            yield files[name]

    for name in files:
        yield from visit(name)


def _nested(descriptor: Descriptor) -> Iterator[Descriptor]:
    if not descriptor.GetOptions().map_entry:
        yield descriptor
        for inner in descriptor.nested_types:
            yield from _nested(inner)


def variants(message: type[Message]) -> Iterator[Message]:
    """The message empty, then full once for each member of its largest oneof, each time with other members."""
    yield message()
    groups = message.DESCRIPTOR.oneofs
    for choice in range(max((len(group.fields) for group in groups), default=1)):
        filled = message()
        fill(filled, choice)
        yield filled


def fill(message: Message, choice: int, depth: int = 0) -> None:
    """Sets every field, of every oneof the ``choice``-th member, down to a few levels."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Value":
        message.string_value = "text"
        return
    if name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
        message.seconds, message.nanos = 7, 250_000_000
        return
    if name == "google.protobuf.Any":
        message.type_url, message.value = "type.googleapis.com/istio.mcp.v1alpha1.SinkNode", b"\n\x01x"
        return
    for field in message.DESCRIPTOR.fields:
        group = field.containing_oneof
        if group is not None and field.name != group.fields[choice % len(group.fields)].name:
            continue
        _fill_field(message, field, choice, depth)


def _fill_field(message: Message, field: FieldDescriptor, choice: int, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _fill_map(getattr(message, field.name), field, choice, depth)
    elif field.message_type is not None:
        if depth < 6:
            values = getattr(message, field.name)
            if field.is_repeated:
                fill(values.add(), choice, depth + 1)
                values.add()
            else:
                values.SetInParent()
                fill(values, choice, depth + 1)
    elif field.is_repeated:
        getattr(message, field.name).extend([_scalar(field), _scalar(field)])
    else:
        setattr(message, field.name, _scalar(field))


def _fill_map(values: object, field: FieldDescriptor, choice: int, depth: int) -> None:
    key, value = field.message_type.fields
    if value.message_type is not None:
        fill(values[_scalar(key)], choice, depth + 1)  # type: ignore[index]
    else:
        values[_scalar(key)] = _scalar(value)  # type: ignore[index]


def _scalar(field: FieldDescriptor) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return b"\x00\xff" if field.type == FieldDescriptor.TYPE_BYTES else "text ü"
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return 12.5
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
    return -(2**bits) if signed else 2**bits
