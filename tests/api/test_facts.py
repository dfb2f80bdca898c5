"""Everything that Istio's API has is in proto/, field by field. ``facts/`` holds what there is to have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tests.support.protos import Files, compiled

Facts = dict[str, Any]
FIELD = descriptor_pb2.FieldDescriptorProto

FACTS: dict[str, Facts] = {
    path: file
    for name in ("legacy-1.4.json", "current.json")
    for path, file in json.loads((Path(__file__).parent / "facts" / name).read_text(encoding="utf-8")).items()
}
"""By proto file: package, messages, enums, services. Where both have a file, the current one counts."""
OURS = {
    ("mesh/v1alpha1/config.proto", "MeshConfig"): ("config_readers", "config_writers", "host_owners", "acme"),
    ("networking/v1alpha3/virtual_service.proto", "HTTPRoute"): ("session", "external_auth"),
    ("networking/v1alpha3/destination_rule.proto", "TrafficPolicy"): ("session",),
}
"""Fields that mesh-pilot adds to Istio's messages, by file and message."""
OUR_MESSAGES = {
    "mesh/v1alpha1/config.proto": ("AcmeIssuer", "AcmeCredential"),
    "networking/v1alpha3/virtual_service.proto": ("HTTPSession", "ExternalAuth"),
}
"""Their messages, by file."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return compiled(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("path", FACTS)
def test_a_file_has_every_message_field_enum_and_service(path: str, files: Files) -> None:
    facts, file = FACTS[path], files[path]
    assert file.package == facts["package"]
    assert file.syntax == "proto3"
    messages, enums = declared(file)
    found = {name: message_facts(message) for name, message in messages.items()}
    for (where, name), fields in OURS.items():
        if where == path:
            for field in fields:
                assert found[name]["fields"].pop(field)["number"] > 10_000
    for message in OUR_MESSAGES.get(path, ()):
        found.pop(message)
    assert found == {name: expected_message(message) for name, message in facts["messages"].items()}
    assert {name: {v.name: v.number for v in enum.value} for name, enum in enums.items()} == facts["enums"]
    assert {service.name: methods(service) for service in file.service} == {
        name: {
            method: {"client_streaming": False, "server_streaming": False} | value for method, value in service.items()
        }
        for name, service in facts["services"].items()
    }


@pytest.mark.parametrize("name", ["legacy-1.4.json", "current.json"])
def test_both_records_are_whole(name: str, files: Files) -> None:
    """Where the two have a file in common, nothing of the older one is lost."""
    facts: dict[str, Facts] = json.loads((Path(__file__).parent / "facts" / name).read_text(encoding="utf-8"))
    for path, file in facts.items():
        for part in ("messages", "enums", "services"):
            assert set(file[part]) <= set(FACTS[path][part]), path


def test_there_are_no_other_files_but_those_of_our_own_kinds(files: Files) -> None:
    istio = {path for path in files if not path.startswith(("google/", "k8s/", "policy/v1alpha1/", "traffic/v1/"))}
    assert istio == set(FACTS)


def declared(
    file: descriptor_pb2.FileDescriptorProto,
) -> tuple[dict[str, descriptor_pb2.DescriptorProto], dict[str, descriptor_pb2.EnumDescriptorProto]]:
    """Messages and enums by their name within the package; a map's entry is not a message."""
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    enums = {enum.name: enum for enum in file.enum_type}

    def add(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        if message.options.map_entry:
            return
        messages[prefix + message.name] = message
        enums.update({f"{prefix}{message.name}.{enum.name}": enum for enum in message.enum_type})
        for inner in message.nested_type:
            add(f"{prefix}{message.name}.", inner)

    for message in file.message_type:
        add("", message)
    return messages, enums


def message_facts(message: descriptor_pb2.DescriptorProto) -> Facts:
    return {
        "fields": {field.name: field_facts(message, field) for field in message.field},
        "reserved": {number for span in message.reserved_range for number in range(span.start, span.end)},
    }


def field_facts(message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto) -> Facts:
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    kind = type_name(field)
    if entry is not None:
        kind = f"map<{type_name(entry.field[0])}, {type_name(entry.field[1])}>"
    return {
        "number": field.number,
        "type": kind,
        "repeated": field.label == FIELD.LABEL_REPEATED and entry is None,
        "oneof": message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None,
        "deprecated": field.options.deprecated,
        "json_name": field.json_name,
    }


def type_name(field: descriptor_pb2.FieldDescriptorProto) -> str:
    return field.type_name.removeprefix(".") or FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()


def expected_message(message: Facts) -> Facts:
    return {
        "fields": {
            field["name"]: {
                "number": field["number"],
                "type": field["type"],
                "repeated": field.get("repeated", False),
                "oneof": field.get("oneof"),
                "deprecated": field.get("deprecated", False),
                "json_name": field.get("json_name") or re.sub("_(.)", lambda m: m[1].upper(), field["name"]),
            }
            for field in message["fields"]
        },
        "reserved": {number for low, high in message.get("reserved", []) for number in range(low, high + 1)},
    }


def methods(service: descriptor_pb2.ServiceDescriptorProto) -> Facts:
    return {
        method.name: {
            "request": method.input_type.removeprefix("."),
            "response": method.output_type.removeprefix("."),
            "client_streaming": method.client_streaming,
            "server_streaming": method.server_streaming,
        }
        for method in service.method
    }
