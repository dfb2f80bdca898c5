"""What the two sides of MCP (Mesh Configuration Protocol, v1alpha1) say, as values free of protobuf and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum

import attrs

from mesh_pilot.model.config import EPOCH


@attrs.frozen
class Resource:
    """One object as the protocol carries it: a body in an envelope."""

    name: str
    """``namespace/name``; a bare name for what belongs to no namespace."""
    version: str = ""
    """Of this content; opaque."""
    type_url: str = ""
    body: bytes = attrs.field(default=b"", repr=False)
    """The encoded message of that type."""
    created: datetime = EPOCH
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def is_like(self, other: Resource) -> bool:
        """Whether two resources are the same in all but the version that they give it."""
        return attrs.evolve(self, version=other.version) == other


class Code(IntEnum):
    """The gRPC status codes with which a response is refused, by their numbers."""

    INVALID_ARGUMENT = 3
    UNIMPLEMENTED = 12


@attrs.frozen
class Refusal:
    """Why a response was not, or not wholly, accepted."""

    code: Code
    message: str


@attrs.frozen
class Request:
    """From the sink: the first one of a collection asks for it, each later one answers a response."""

    collection: str
    nonce: str = ""
    """Of the response that is answered; empty on the first request."""
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """On the first request: what the sink has already, name to version."""
    error: Refusal | None = None
    incremental: bool = False
    """Whether the next response may hold only what changed."""


@attrs.frozen
class Response:
    """From the source: a whole collection, or with ``incremental`` what changed in it."""

    collection: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()
    """Names; only where incremental."""
    nonce: str = ""
    version: str = ""
    """Of the source's state as a whole, for people."""
    incremental: bool = False
