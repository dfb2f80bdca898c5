"""Responses as bytes: the fields of ``DiscoveryResponse`` and ``DeltaDiscoveryResponse`` written one after the other.

Resources are encoded already; a response is its own few fields around them (Protocol Buffers, "Encoding"). Responses
with the same content have the same version and nonce, so all streams in the same state are sent the same object.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import attrs

from mesh_pilot.base.protowire import field, field_header
from mesh_pilot.xds.ads.messages import Response, Variant

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


@attrs.frozen
class EncoderStatistics:
    """Statistics of the encoded responses that streams share."""

    encoded: int
    """Responses put together."""
    shared: int
    """Responses found in the cache."""
    cached_bytes: int
    """Size of the cache."""
    cached: int = 0
    """Responses in it."""
    evicted: int = 0
    """Responses that left it because it was full."""
    trimmed: int = 0
    """Responses that left it because no client was sent them any more."""


class Encoder:
    """Encodes responses and caches the latest for the next stream in the same state, up to ``max_cached_bytes``.

    Mutable state: the cached responses, least recently used first, their size, which were used since the last
    ``trim``, and the counts.
    """

    def __init__(self, identifier: str, *, max_cached_bytes: int = 32 * 1024 * 1024) -> None:
        """``identifier`` names this control plane to its clients."""
        self._control_plane = _field(_IDENTIFIER, identifier.encode())
        self._max_cached_bytes = max_cached_bytes
        self._cached: OrderedDict[tuple[Variant, str, str, str], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._used: set[tuple[Variant, str, str, str]] = set()
        self._encoded = 0
        self._shared = 0
        self._evicted = 0
        self._trimmed = 0

    def __repr__(self) -> str:
        return f"<Encoder {len(self._cached)} cached, {self._cached_bytes} bytes>"

    def statistics(self) -> EncoderStatistics:
        return EncoderStatistics(
            self._encoded, self._shared, self._cached_bytes, len(self._cached), self._evicted, self._trimmed
        )

    def trim(self) -> int:
        """Drop responses that no stream was sent since the last call; returns their size in bytes."""
        old = [key for key in self._cached if key not in self._used]
        before = self._cached_bytes
        for key in old:
            self._cached_bytes -= len(self._cached.pop(key))
        self._trimmed += len(old)
        self._used.clear()
        return before - self._cached_bytes

    def encode(self, response: Response) -> bytes:
        """The encoded response; the same object for the same content while it is cached."""
        key = (response.variant, response.type_url, response.version, response.nonce)
        self._used.add(key)
        found = self._cached.get(key)
        if found is not None:
            self._cached.move_to_end(key)
            self._shared += 1
            return found
        self._encoded += 1
        encoded = self._sotw(response) if response.variant is Variant.SOTW else self._delta(response)
        self._cached[key] = encoded
        self._cached_bytes += len(encoded)
        while self._cached_bytes > self._max_cached_bytes and len(self._cached) > 1:
            oldest, dropped = self._cached.popitem(last=False)
            self._used.discard(oldest)
            self._evicted += 1
            self._cached_bytes -= len(dropped)
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
