"""Rules for the formats of access logs: a line, or a JSON object with a format in each text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshConfigAccessLogEncoding
from mesh_pilot.istio.rules.context import error, warning
from mesh_pilot.istio.rules.substitution import log_format_reason
from mesh_pilot.model.config import Problem


def check_mesh_log(mesh: MeshConfig) -> Iterator[Problem]:
    """The format of the mesh's own log file; if there is none, of the provider ``envoy``, which may never be used."""
    text = mesh.access_log_format
    tell = error if mesh.access_log_file else warning
    if text and mesh.access_log_encoding != MeshConfigAccessLogEncoding.JSON:
        if reason := log_format_reason(text):
            yield tell("accessLogFormat", reason)
    elif text:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return  # the default is used, with a warning
        for name, reason in field_reasons(fields).items() if isinstance(fields, Mapping) else ():
            yield tell("accessLogFormat", f"field {name}: {reason}")


def field_reasons(fields: Mapping[str, object]) -> dict[str, str]:
    """The fields of a JSON format that Envoy refuses, with the reasons."""
    found = ((name, next(_reasons(value), "")) for name, value in fields.items())
    return {name: reason for name, reason in found if reason}


def _reasons(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if reason := log_format_reason(value):
            yield reason
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _reasons(item)
