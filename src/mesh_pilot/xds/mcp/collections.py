"""The table of collections: the name of each over MCP and over xDS, and the type of its resources.

MCP names are those of Galley's table of types (Istio 1.1 to 1.4) and, for later kinds, those of Istio's collection
schemas: ``istio/<group>/<version>/<plural>``. The xDS names ``<group>.istio.io/<version>/<kind>`` are those of istiod's
``api`` generator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.istio.kinds import ISTIO_KINDS, Kind, message_at

if TYPE_CHECKING:
    import betterproto2

TYPE_URL_PREFIX = "type.googleapis.com/"


@attrs.frozen
class McpCollection:
    """A collection: its names and the type of its resources."""

    name: str
    message_class: str
    """Where `mesh_pilot.api` has the message of its bodies."""
    message_name: str
    """The full protobuf name of the bodies' message."""
    xds_name: str = ""
    """Type name over xDS; empty if it is not served there."""
    kind: Kind | None = None
    """The kind of its configs; None for mesh-wide settings and Kubernetes objects."""
    synthetic: bool = False
    """Made from a registry's services. Users' ServiceEntries may have the same names."""
    kubernetes: bool = False
    """Core Kubernetes objects, several of which form a service."""

    @property
    def message(self) -> type[betterproto2.Message]:
        return message_at(self.message_class)

    @property
    def type_url(self) -> str:
        return TYPE_URL_PREFIX + self.message_name


SYNTHETIC_SUFFIX = ".synthetic"
"""Suffix of the names of synthetic ServiceEntries, because a user's ServiceEntry may have the same name."""

_MESH = "istio.mesh.v1alpha1"

MESH_CONFIG = McpCollection(
    "istio/mesh/v1alpha1/MeshConfig", f"{_MESH}.MeshConfig", f"{_MESH}.MeshConfig", "core/v1alpha1/MeshConfig"
)
MESH_NETWORKS = McpCollection(
    "istio/mesh/v1alpha1/MeshNetworks", f"{_MESH}.MeshNetworks", f"{_MESH}.MeshNetworks", "core/v1alpha1/MeshNetworks"
)
SYNTHETIC_ENTRIES = McpCollection(
    "istio/networking/v1alpha3/synthetic/serviceentries",
    ISTIO_KINDS["ServiceEntry"].message_class,
    ISTIO_KINDS["ServiceEntry"].message_name,
    kind=ISTIO_KINDS["ServiceEntry"],
    synthetic=True,
)


def _current(kind: Kind) -> McpCollection:
    group, version = kind.group.removesuffix(".istio.io"), kind.versions[0]
    name = f"istio/{group}/{version}/{kind.plural}"
    xds_name = "" if kind.legacy else f"{kind.group}/{version}/{kind.name}"
    return McpCollection(name, kind.message_class, kind.message_name, xds_name, kind)


_LEGACY_TABLE: tuple[tuple[str, str, str], ...] = (
    ("HTTPAPISpec", "istio.mixer.v1.config.client.HttpapiSpec", "config/v1alpha2"),
    ("HTTPAPISpecBinding", "istio.mixer.v1.config.client.HttpapiSpecBinding", "config/v1alpha2"),
    ("QuotaSpec", "istio.mixer.v1.config.client.QuotaSpec", "mixer/v1/config/client"),
    ("QuotaSpecBinding", "istio.mixer.v1.config.client.QuotaSpecBinding", "mixer/v1/config/client"),
)
"""Kinds of Istio 1.1 to 1.4: kind, message, folder of the collection's name."""


def _legacy(name: str, message: str, folder: str) -> McpCollection:
    kind = Kind(name, message, "idle.validate", group="config.istio.io", versions=("v1alpha2",), legacy=True)
    return McpCollection(f"istio/{folder}/{kind.plural}", message, kind.message_name, kind=kind)


_IN_EVERY_GALLEY = frozenset(("DestinationRule", "EnvoyFilter", "Gateway", "ServiceEntry", "Sidecar", "VirtualService"))

_KUBERNETES_TABLE: tuple[tuple[str, str, str], ...] = (
    ("nodes", "k8s.io.api.core.v1.NodeSpec", "NodeSpec"),
    ("pods", "k8s.io.api.core.v1.Pod", "Pod"),
    ("endpoints", "k8s.io.api.core.v1.Endpoints", "Endpoints"),
    ("services", "k8s.io.api.core.v1.ServiceSpec", "ServiceSpec"),
)
"""Plural, body, message name. Referenced objects come before the ones that refer to them."""

_CURRENT = tuple(_current(kind) for kind in ISTIO_KINDS.values() if not kind.legacy)
_LEGACY = (*(_current(kind) for kind in ISTIO_KINDS.values() if kind.legacy), *(_legacy(*row) for row in _LEGACY_TABLE))
_KUBERNETES = tuple(
    McpCollection(f"k8s/core/v1/{plural}", message, f"k8s.io.api.core.v1.{name}", kubernetes=True)
    for plural, message, name in _KUBERNETES_TABLE
)

_BY_NAME = {c.kind.name: c for c in _CURRENT if c.kind is not None}

_BY_AGE: tuple[McpCollection, ...] = (
    SYNTHETIC_ENTRIES,  # Galley 1.2
    MESH_CONFIG,  # 1.3
    _BY_NAME["AuthorizationPolicy"],  # 1.4
    _BY_NAME["RequestAuthentication"],  # 1.5, the last
    _BY_NAME["PeerAuthentication"],
)
_IN_ALL = (*(_BY_NAME[name] for name in sorted(_IN_EVERY_GALLEY, reverse=True)), *_LEGACY)
"""Collections of each Galley from 1.1 on. The legacy kinds among them are in no other server that is known."""

_IN_NONE = tuple(c for c in (MESH_NETWORKS, *_CURRENT) if c not in (*_IN_ALL, *_BY_AGE))

COLLECTIONS: Mapping[str, McpCollection] = MappingProxyType(
    {c.name: c for c in (*_BY_AGE, *_IN_NONE, *_IN_ALL, *_KUBERNETES)}
)
"""Every collection that our MCP client requests, by name.

Collections that some Galleys lack come first, the oldest before the others: Galley ends the stream at the first one
that it lacks, so this way it has not sent anything else in vain, and the first that it lacks says how old it is.
"""


def lacking(refused: Collection[str]) -> frozenset[str]:
    """The collections that a server lacks which has refused these.

    A Galley that lacks what came with a release lacks what came later, too. Who has refused something that every Galley
    has is another server, of which nothing more is known.
    """
    known = frozenset(refused)
    if known & {c.name for c in _IN_ALL}:
        return known
    ages = [c.name for c in (*_BY_AGE, *_IN_NONE)]
    first = min((ages.index(name) for name in known & {*ages}), default=len(ages))
    return known | {*ages[first:]}


def _xds_names(collection: McpCollection) -> Iterator[str]:
    yield collection.xds_name
    if collection.kind is not None and len(collection.kind.versions) > 1:
        yield f"{collection.kind.group}/{collection.kind.versions[-1]}/{collection.kind.name}"


XDS_COLLECTIONS: Mapping[str, McpCollection] = MappingProxyType(
    {name: c for c in COLLECTIONS.values() if c.xds_name for name in _xds_names(c)}
)
"""The collections served over xDS, by xDS name: in the oldest version, for older istiods, and in the newest.

A server may answer under both names (aliases), with the same content.
"""

COLLECTION_OF_KIND: Mapping[str, McpCollection] = MappingProxyType(
    {c.kind.name: c for c in (*_CURRENT, *_LEGACY) if c.kind is not None}
)
"""The collection of users' configs of each kind."""


def is_same_message(wanted: str, type_url: str) -> bool:
    """True if a type URL names the message in any API version: Istio's messages are the same in all versions."""
    return _unversioned(wanted) == _unversioned(type_url.rpartition("/")[2])


def _unversioned(message_name: str) -> tuple[list[str], str]:
    parts = message_name.split(".")
    return parts[:-2], parts[-1]
