"""The input and output of a stream as values: requests, responses, NACKs, errors and its state for people.

Free of protobuf and gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, StrEnum
from typing import Any

import attrs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import NodeError, Proxy, parse_proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import NOWHERE, Locality


class Variant(StrEnum):
    """The two dialects of xDS."""

    SOTW = "sotw"
    """State of the World: each request names everything requested; CDS and LDS responses hold everything."""
    DELTA = "delta"
    """Incremental: requests and responses hold what changed."""


class Code(IntEnum):
    """The gRPC status codes that a stream ends with, by their numbers."""

    INVALID_ARGUMENT = 3
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class StreamError(Exception):
    """A request that ends its stream: the gRPC status, and what was wrong for the client's operator."""

    def __init__(self, code: Code, message: str, *, bound: str = "") -> None:
        """``bound`` names the field of ``model.bounds.Bounds`` that the client exceeds, if any."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.bound = bound


@attrs.frozen
class Node:
    """The identity that a client claims (Envoy's ``core.v3.Node``), in plain Python."""

    id: str
    metadata: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    locality: Locality = NOWHERE
    cluster: str = ""
    version: str = ""
    """The version of Envoy, ``1.40.0``, or of another client as it puts it."""
    build: str = ""
    """See ``Proxy.build``."""


def proxy_of(node: Node | None) -> Proxy:
    """The proxy that the node in a stream's first message describes. Raises StreamError."""
    if node is None:
        raise StreamError(Code.INVALID_ARGUMENT, "the first request of a stream must have a node, and this has none")
    try:
        return parse_proxy(
            node.id,
            node.metadata,
            locality=node.locality,
            cluster=node.cluster,
            version=node.version,
            build=node.build,
        )
    except NodeError as error:
        raise StreamError(Code.INVALID_ARGUMENT, str(error)) from error


class SharedNames(tuple[str, ...]):
    """Names that many requests share: their hash, by which their subscriptions are found, is computed once."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known


@attrs.frozen
class SotwRequest:
    """A ``DiscoveryRequest``."""

    type_url: str = ""
    names: tuple[str, ...] = ()
    nonce: str = ""
    version: str = ""
    """The last version that the client accepted, perhaps on an earlier stream."""
    error: str | None = None
    """Why the response with this nonce was refused (``error_detail``); None when it was not."""
    node: Node | None = None


class PresentedVersions(dict[str, str]):
    """The versions that a reconnecting Delta client has, by name; never changed.

    Hashed as the object that it is: of clients that present the same it is mostly one (``decode``), and what follows
    from it is then found without a look at the names.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]


def _as_presented(versions: Mapping[str, str]) -> PresentedVersions:
    return versions if isinstance(versions, PresentedVersions) else PresentedVersions(versions)


@attrs.frozen
class DeltaRequest:
    """A ``DeltaDiscoveryRequest``."""

    type_url: str = ""
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: PresentedVersions = attrs.field(factory=PresentedVersions, converter=_as_presented)
    """The resources that a reconnecting client has, name to version."""
    nonce: str = ""
    error: str | None = None
    """Why the response with this nonce was refused (``error_detail``); None when it was not."""
    node: Node | None = None


Request = SotwRequest | DeltaRequest


@attrs.frozen(eq=False)
class Response:
    """A ``DiscoveryResponse`` or ``DeltaDiscoveryResponse``: everything but its encoding.

    Variant, type, version and nonce together stand for its content: two responses that agree in them are equal.
    """

    variant: Variant
    type_url: str
    version: str
    """Hash of all that the client holds of this type once it has applied this."""
    nonce: str
    """Hash of the content, with ``+`` appended when the response before it had the same."""
    resources: tuple[Resource, ...] = attrs.field(repr=lambda found: str(len(found)))
    removed: tuple[str, ...] = ()
    """Delta only: names that the client must drop, or that do not exist."""
    version_suffixes: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Delta only: appended to the version of each resource, and presented by the client when it reconnects. Empty for
    plain versions."""
    touched: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Names whose content is new to the client: in a State of the World response not all of its resources."""

    def versions(self) -> tuple[str, ...]:
        """The version of each resource as it goes to a Delta client."""
        suffixes = self.version_suffixes or ("",) * len(self.resources)
        return tuple(r.version + suffix for r, suffix in zip(self.resources, suffixes, strict=True))


@attrs.frozen
class Nack:
    """A response that a client refused."""

    proxy: Proxy
    type_url: str
    nonce: str
    version: str
    reason: str
    """As the client puts it."""
    names: tuple[str, ...] = ()
    """The resources that the reason names, or the only one in the response; empty when it is unknown which."""
    configs: tuple[ConfigKey, ...] = ()
    """The objects that those resources were made from."""
    resources: tuple[Resource, ...] = attrs.field(default=(), repr=False)
    """The resources in ``names``; all of the response when it is unknown which."""
    is_warming: bool = False
    """True if the client has accepted them, and does not use them though it has had the time."""


class Phase(Enum):
    """How far the last response of a type has come."""

    IDLE = "idle"
    """None was sent on this stream yet."""
    UNACKED = "un-ACKed"
    ACKED = "ACKed"
    NACKED = "NACKed"


@attrs.frozen
class SubscriptionStatistics:
    """One type of one stream, for people."""

    type_url: str
    phase: Phase
    """ACKED, too, if the client came with all that it should have, so that nothing was sent."""
    wildcard: bool
    names: int
    """Names subscribed to besides the wildcard."""
    resources: int
    """Resources that the client was sent and should still have."""
    version: str
    """Last version sent."""
    nonce: str
    """Last nonce sent."""
    acked_version: str
    acked_nonce: str
    nacked: int
    """Resources of refused responses that the client may or may not have."""
