"""The flags of ``mesh-pilot discovery`` about what xDS clients may ask for: one for each field of ``Bounds``."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import attrs
import click

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds

_HELP = {
    "max_streams": "xDS streams open at the same time.",
    "max_request_bytes": "Size of one xDS request.",
    "max_names": "Resource names in one subscription.",
    "max_name_length": "Characters of a resource name, a node id, a label's key or value.",
    "max_node_bytes": "Size of a request without its resource names: mostly the node.",
    "max_node_values": "Values in the metadata of a node.",
    "max_labels": "Labels of a node.",
    "max_scopes_per_peer": "Namespaces, localities, ... that the proxies at one address may have.",
    "requests_per_second": "Requests of one stream that answer nothing; more wait.",
    "streams_per_second": "New xDS streams; more wait.",
}


def _flag(field: attrs.Attribute[Any]) -> tuple[str, Mapping[str, Any]]:
    kind = click.FloatRange(min=0) if isinstance(field.default, float) else click.IntRange(min=0)
    help_text = f"{_HELP[field.name]}  0: no limit."
    return "--" + field.name.replace("_", "-"), {"type": kind, "default": field.default, "help": help_text}


BOUND_FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = [_flag(field) for field in attrs.fields(Bounds)]


def bounds_of(options: MutableMapping[str, Any]) -> Bounds:
    """The bounds that were given, taken out of the options of the command."""
    names = attrs.asdict(DEFAULT_BOUNDS)
    return Bounds(**{name: options.pop(name) for name in names})
