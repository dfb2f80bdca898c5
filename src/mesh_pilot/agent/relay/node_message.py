"""A node as an encoded ``core.v3.Node``, so that no generated message is imported.

Field numbers: Envoy's ``config/core/v3/base.proto``, Protocol Buffers' ``struct.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.base.protowire import FIXED64, VARINT, field, tag, varint

AGENT = "AGENT"
"""The metadata by which a control plane knows this agent: its version."""


def encode_node(node: EnvoyNode, metadata: Mapping[str, Any]) -> bytes:
    """The encoded node, with ``metadata`` besides its own."""
    message = node.to_dict()
    own: Any = message["metadata"]
    parts = [
        field(1, str(message["id"]).encode()),
        field(2, str(message["cluster"]).encode()),
        field(3, _struct({**own, **metadata})),
    ]
    locality = b"".join(field(number, text.encode()) for number, text in enumerate(node.locality[:3], start=1) if text)
    if locality:
        parts.append(field(4, locality))
    return b"".join(parts)


def _struct(values: Mapping[str, Any]) -> bytes:
    return b"".join([field(1, field(1, key.encode()) + field(2, _value(value))) for key, value in values.items()])


def _value(value: Any) -> bytes:
    """``google.protobuf.Value``: null, number, string, bool, struct, list."""
    match value:
        case None:
            return tag(1, VARINT) + varint(0)
        case bool():
            return tag(4, VARINT) + varint(value)
        case int() | float():
            return tag(2, FIXED64) + struct.pack("<d", value)
        case Mapping():
            return field(5, _struct(value))
        case list() | tuple():
            return field(6, b"".join([field(1, _value(each)) for each in value]))
        case _:
            return field(3, str(value).encode())
