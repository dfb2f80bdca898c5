"""Fields whose use is a warning, whatever their value: without effect here, deprecated, or removed from Istio's API.

A stock Envoy can be configured over xDS only as far as xDS goes. Settings of its bootstrap, of Kubernetes or of the
program that starts the proxy have no effect here, and the warning says so. A MeshConfig lives for years and is dumped
with the defaults of the version that wrote it, so removed fields are warnings too. The fields and the reasons are
`field_warnings.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import betterproto2
import yaml

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigDefaultProviders
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, camel_case
from mesh_pilot.model.config import Problem, Severity

Table = Mapping[type[betterproto2.Message], Mapping[str, str]]
"""Reasons by message and the name of a field."""

NO_EFFECT = "has no effect"
"""First words of the reason of such a warning."""


def use_warnings(message: type[betterproto2.Message], field: FieldDescriptor, path: str) -> Iterator[Problem]:
    """Warnings about the field at `path` because it is set."""
    if (idle := WITHOUT_EFFECT.get(message)) and field.proto_name in idle:
        yield Problem(path, f"{NO_EFFECT}: {idle[field.proto_name]}", Severity.WARNING)
    elif (deprecated := DEPRECATED.get(message)) and field.proto_name in deprecated:
        yield Problem(path, f"is deprecated: {deprecated[field.proto_name]}", Severity.WARNING)


_TABLES: Mapping[str, Mapping[str, Mapping[str, str]]] = yaml.load(
    Path(__file__).with_name("field_warnings.yaml").read_bytes(), Loader=yaml.CSafeLoader
)


def _table(name: str, *, every_name: bool = False) -> Table:
    """``every_name``: by every name that the fields may be written with, not only by that in the proto."""
    found: dict[type[betterproto2.Message], Mapping[str, str]] = {}
    for full_name, fields in _TABLES[name].items():
        module, _, message = full_name.rpartition(".")
        both = {camel_case(field): reason for field, reason in fields.items()} if every_name else {}
        kind: Any = getattr(import_module(f"mesh_pilot.api.{module}"), message)
        found[kind] = {**fields, **both}
    return found


WITHOUT_EFFECT = _table("without_effect")

DEPRECATED = _table("deprecated")

REMOVED = _table("removed", every_name=True)
"""Removed fields whose use is a warning: objects that have one are in force."""

REPLACED = _table("replaced", every_name=True)
"""Removed fields whose use is an error: without what they said, the object would mean something else."""

ONCE_SINGLE: Mapping[tuple[type[betterproto2.Message], str], str] = {(MeshConfigDefaultProviders, "tracing"): "1.11"}
"""Lists that once were a single text, and the version of Istio that made them lists."""
