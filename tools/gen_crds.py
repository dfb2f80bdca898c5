"""Writes CustomResourceDefinitions of the kinds that mesh-pilot reads, by their messages.

    python tools/gen_crds.py     # writes samples/kubernetes/crds.yaml, for clusters without Istio's own

Fields and their types are those of the API; descriptions are not in them, and rules beyond types are what mesh-pilot's
validation is for. A test sees to it that the file is what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import betterproto2
import yaml

from mesh_pilot.api.google.protobuf import ListValue, Struct
from mesh_pilot.istio.kinds import KINDS, Kind
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of

TARGET = Path(__file__).resolve().parent.parent / "samples" / "kubernetes" / "crds.yaml"
HEAD = "# Made by tools/gen_crds.py. Istio's kinds, for clusters where Istio's own definitions are not installed.\n"

Schema = dict[str, Any]

ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SHORT_NAMES = {
    "VirtualService": "vs",
    "DestinationRule": "dr",
    "Gateway": "gw",
    "ServiceEntry": "se",
    "WorkloadEntry": "we",
    "WorkloadGroup": "wg",
    "PeerAuthentication": "pa",
    "RequestAuthentication": "ra",
    "AuthorizationPolicy": "ap",
}
_SCALARS: dict[str, Schema] = {
    "bool": {"type": "boolean"},
    "double": {"type": "number", "format": "double"},
    "float": {"type": "number", "format": "float"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "uint32": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    "uint64": {"type": "integer", "minimum": 0},
}


def istio_kinds() -> list[Kind]:
    return [kind for kind in KINDS.values() if kind.group.endswith(".istio.io") and not kind.legacy]


def definitions(kinds: Iterable[Kind]) -> Iterator[dict[str, Any]]:
    """A CustomResourceDefinition of each; the newest version is the one that is stored."""
    for kind in kinds:
        yield definition(kind)


def definition(kind: Kind) -> dict[str, Any]:
    name = getattr(kind, "written", "") or kind.name
    schema = {
        "type": "object",
        "properties": {"spec": message_schema(kind.message, ()), "status": dict(ANYTHING)},
    }
    names = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": kind.plural,
        "singular": name.lower(),
        "categories": ["istio-io"] if kind.group.endswith(".istio.io") else ["gateway-api"],
    }
    if kind.name in SHORT_NAMES and kind.group.endswith(".istio.io"):
        names["shortNames"] = [SHORT_NAMES[kind.name]]
    metadata: dict[str, Any] = {"name": f"{kind.plural}.{kind.group}"}
    if kind.group.endswith("k8s.io"):
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, a definition by mesh-pilot"}
    versions = [
        {
            "name": version,
            "served": True,
            "storage": version == kind.versions[-1],
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
        }
        for version in kind.versions
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "scope": "Cluster" if kind.cluster_scoped else "Namespaced",
            "names": names,
            "versions": versions,
        },
    }


def message_schema(message: type[betterproto2.Message], within: tuple[type, ...]) -> Schema:
    """An object with the fields of a message; one that contains itself takes anything at its second level."""
    if message in within:
        return dict(ANYTHING)
    fields = descriptor_of(message).fields
    if not fields:
        return {"type": "object"}
    return {"type": "object", "properties": {f.json_name: _field_schema(f, (*within, message)) for f in fields}}


def _field_schema(field: FieldDescriptor, within: tuple[type, ...]) -> Schema:
    if field.value is not None:
        return {"type": "object", "additionalProperties": _value_schema(field.value, within)}
    if field.repeated:
        return {"type": "array", "items": _value_schema(field, within)}
    return _value_schema(field, within)


def _value_schema(field: FieldDescriptor, within: tuple[type, ...]) -> Schema:
    if field.message is not None:
        return message_schema(field.message, within)
    if field.wellknown is not None:
        if field.wellknown is Struct:
            return dict(ANYTHING)
        if field.wellknown is ListValue:
            return {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": True}}
        if issubclass(field.wellknown, betterproto2.Message):
            return {"x-kubernetes-preserve-unknown-fields": True}
        return {"type": "string"} if field.wellknown is timedelta else {"type": "string", "format": "date-time"}
    return dict(_SCALARS.get(field.proto_type, {"type": "string"}))


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def text() -> str:
    """The content of the file."""
    return HEAD + yaml.dump_all(definitions(istio_kinds()), Dumper=_Dumper, explicit_start=True, sort_keys=False)


def main() -> int:
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
