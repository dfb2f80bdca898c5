"""Responses as bytes: the fields of ``DiscoveryResponse`` and ``DeltaDiscoveryResponse`` written one after the other.

Resources are encoded already; a response is its own few fields around them (Protocol Buffers, "Encoding"). Responses
with the same content have the same version and nonce, so all streams in the same state are sent the same object.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import attrs

from mesh_pilot.model.resource import ENDPOINT, Resource, make_resource
from mesh_pilot.protowire import field, field_header
from mesh_pilot.xds.messages import Response, Variant

_VERSION = 1
"""The version, and the resources, have the same field numbers in both messages."""
_RESOURCES = 2
_TYPE_URL = 4
_NONCE = 5
_SOTW_CONTROL_PLANE = 6
_DELTA_REMOVED = 6
_DELTA_CONTROL_PLANE = 7

_IDENTIFIER = 1
"""``ControlPlane.identifier``."""
_ANY_TYPE_URL = 1
_ANY_VALUE = 2
_RESOURCE_VERSION = 1
"""``Resource.version`` and so on: the wrapper of a Delta resource."""
_RESOURCE_BODY = 2
_RESOURCE_NAME = 3
_CLUSTER_NAME = 1
"""``ClusterLoadAssignment.cluster_name``."""


@attrs.frozen
class EncoderStatistics:
    """How often encoded responses were shared."""

    encoded: int
    """Responses put together."""
    shared: int
    """Responses that were there already."""
    kept_bytes: int
    """Size of those kept for the next stream in the same state."""


class Encoder:
    """Encodes responses and keeps the latest for the next stream in the same state, up to ``keep_bytes``.

    Mutable state: the kept responses, least recently used first, their size, which were used since the last
    ``trim``, and the counts.
    """

    def __init__(self, identifier: str, *, keep_bytes: int = 32 * 1024 * 1024) -> None:
        """``identifier`` names this control plane to its clients."""
        self._control_plane = _field(_IDENTIFIER, identifier.encode())
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[tuple[Variant, str, str, str], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._used: set[tuple[Variant, str, str, str]] = set()
        self._encoded = 0
        self._shared = 0

    def __repr__(self) -> str:
        return f"<Encoder {len(self._kept)} kept, {self._kept_bytes} bytes>"

    def statistics(self) -> EncoderStatistics:
        return EncoderStatistics(self._encoded, self._shared, self._kept_bytes)

    def trim(self) -> int:
        """Drop responses that no stream was sent since the last call; returns their size in bytes."""
        old = [key for key in self._kept if key not in self._used]
        before = self._kept_bytes
        for key in old:
            self._kept_bytes -= len(self._kept.pop(key))
        self._used.clear()
        return before - self._kept_bytes

    def encode(self, response: Response) -> bytes:
        """The encoded response; the same object for the same content while it is kept."""
        key = (response.variant, response.type_url, response.version, response.nonce)
        self._used.add(key)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self._shared += 1
            return found
        self._encoded += 1
        encoded = self._sotw(response) if response.variant is Variant.SOTW else self._delta(response)
        self._kept[key] = encoded
        self._kept_bytes += len(encoded)
        while self._kept_bytes > self._keep_bytes and len(self._kept) > 1:
            gone, dropped = self._kept.popitem(last=False)
            self._used.discard(gone)
            self._kept_bytes -= len(dropped)
        return encoded

    def _sotw(self, response: Response) -> bytes:
        parts = [_field(_VERSION, response.version.encode())]
        for resource in response.resources:
            parts.append(_any_prefix(_RESOURCES, resource.type_url, len(resource.body)))
            parts.append(resource.body)
        parts.append(_field(_TYPE_URL, response.type_url.encode()))
        parts.append(_field(_NONCE, response.nonce.encode()))
        parts.append(_field(_SOTW_CONTROL_PLANE, self._control_plane))
        return b"".join(parts)

    def _delta(self, response: Response) -> bytes:
        parts = [_field(_VERSION, response.version.encode())]
        for resource, version in zip(response.resources, response.versions(), strict=True):
            before = _field(_RESOURCE_VERSION, version.encode())
            body = _any_prefix(_RESOURCE_BODY, resource.type_url, len(resource.body))
            after = _field(_RESOURCE_NAME, resource.name.encode())
            size = len(before) + len(body) + len(resource.body) + len(after)
            parts += [field_header(_RESOURCES, size), before, body, resource.body, after]
        parts.append(_field(_TYPE_URL, response.type_url.encode()))
        parts.append(_field(_NONCE, response.nonce.encode()))
        for name in response.removed:
            parts.append(field(_DELTA_REMOVED, name.encode()))
        parts.append(_field(_DELTA_CONTROL_PLANE, self._control_plane))
        return b"".join(parts)


def no_endpoints(cluster: str) -> Resource:
    """The ClusterLoadAssignment of a cluster that has none."""
    return make_resource(cluster, ENDPOINT, _field(_CLUSTER_NAME, cluster.encode()))


def _field(number: int, value: bytes) -> bytes:
    """A string or message field; nothing when it is empty, as proto3 has it for strings."""
    return field(number, value) if value else b""


@lru_cache(maxsize=8192)
def _any_prefix(number: int, type_url: str, size: int) -> bytes:
    """All of a field that holds an Any up to the value, whose size is given."""
    inner = _field(_ANY_TYPE_URL, type_url.encode())
    if size:
        inner += field_header(_ANY_VALUE, size)
    return field_header(number, len(inner) + size) + inner
