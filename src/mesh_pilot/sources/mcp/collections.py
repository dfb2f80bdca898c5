"""The table of collections: what each is called in MCP and over xDS, and what its resources are.

Names are those that Galley offers (its table of types, Istio 1.1 to 1.4) and, for kinds that came later, those of
Istio's own collection schemas: ``istio/<group>/<version>/<plural>``. Over xDS they are called
``<group>.istio.io/<version>/<kind>``, as istiod's ``api`` generator names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs
import betterproto2

from mesh_pilot.api.istio.authentication import v1alpha1 as authentication
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.api.istio.mixer.v1.config import client as mixer
from mesh_pilot.api.istio.rbac import v1alpha1 as rbac
from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.kinds import KINDS, Kind
from mesh_pilot.config.validation.context import Context
from mesh_pilot.model.config import Problem, Severity

PREFIX = "type.googleapis.com/"

LEGACY_REASON = "this kind is kept and listed, but nothing in a current Envoy carries it out"


@attrs.frozen
class Collection:
    """What the resources of one name are."""

    name: str
    message: type[betterproto2.Message]
    message_name: str
    """The full protobuf name of the bodies' message."""
    xds_name: str = ""
    """What it is called over xDS; empty where it is not served there."""
    kind: Kind | None = None
    """The kind of its configs; None for the settings of the mesh, and for objects of Kubernetes."""
    synthetic: bool = False
    """Made of a registry's services: kept apart from what people wrote under the same name."""
    kubernetes: bool = False
    """Objects of Kubernetes itself, of which several make up a service."""

    @property
    def type_url(self) -> str:
        return PREFIX + self.message_name


MESH_CONFIG = Collection(
    "istio/mesh/v1alpha1/MeshConfig", mesh.MeshConfig, "istio.mesh.v1alpha1.MeshConfig", "core/v1alpha1/MeshConfig"
)
MESH_NETWORKS = Collection(
    "istio/mesh/v1alpha1/MeshNetworks",
    mesh.MeshNetworks,
    "istio.mesh.v1alpha1.MeshNetworks",
    "core/v1alpha1/MeshNetworks",
)
SYNTHETIC = Collection(
    "istio/networking/v1alpha3/synthetic/serviceentries",
    KINDS["ServiceEntry"].message,
    KINDS["ServiceEntry"].message_name,
    kind=KINDS["ServiceEntry"],
    synthetic=True,
)


def _current(kind: Kind) -> Collection:
    group, version = kind.group.removesuffix(".istio.io"), kind.versions[0]
    name = f"istio/{group}/{version}/{kind.plural}"
    return Collection(name, kind.message, kind.message_name, f"{kind.group}/{version}/{kind.name}", kind)


def _is_legacy(spec: betterproto2.Message, context: Context) -> Iterator[Problem]:
    yield Problem("", LEGACY_REASON, Severity.WARNING)


_CONFIG = "config.istio.io"
_AUTHENTICATION = "authentication.istio.io"
_RBAC = "rbac.istio.io"
_MIXER = "istio.mixer.v1.config.client"
_RULES = "istio.rbac.v1alpha1"
_POLICY = "istio.authentication.v1alpha1.Policy"

_LEGACY_TABLE: tuple[tuple[str, str, type[betterproto2.Message], str, str], ...] = (
    ("Policy", _AUTHENTICATION, authentication.Policy, _POLICY, "policies"),
    ("MeshPolicy", _AUTHENTICATION, authentication.Policy, _POLICY, "meshpolicies"),
    ("ServiceRole", _RBAC, rbac.ServiceRole, f"{_RULES}.ServiceRole", "serviceroles"),
    ("ServiceRoleBinding", _RBAC, rbac.ServiceRoleBinding, f"{_RULES}.ServiceRoleBinding", "servicerolebindings"),
    ("RbacConfig", _RBAC, rbac.RbacConfig, f"{_RULES}.RbacConfig", "rbacconfigs"),
    ("ClusterRbacConfig", _RBAC, rbac.RbacConfig, f"{_RULES}.RbacConfig", "clusterrbacconfigs"),
    ("HTTPAPISpec", _CONFIG, mixer.HttpapiSpec, f"{_MIXER}.HTTPAPISpec", "httpapispecs"),
    ("HTTPAPISpecBinding", _CONFIG, mixer.HttpapiSpecBinding, f"{_MIXER}.HTTPAPISpecBinding", "httpapispecbindings"),
    ("QuotaSpec", _CONFIG, mixer.QuotaSpec, f"{_MIXER}.QuotaSpec", "quotaspecs"),
    ("QuotaSpecBinding", _CONFIG, mixer.QuotaSpecBinding, f"{_MIXER}.QuotaSpecBinding", "quotaspecbindings"),
)
"""Kind, API group, message and its name, plural; of Istio 1.1 to 1.4."""


def _legacy(name: str, group: str, message: type[betterproto2.Message], message_name: str, plural: str) -> Collection:
    version = "v1alpha2" if group == _CONFIG else "v1alpha1"
    kind = Kind(name, group, (version,), plural, message, _is_legacy, name in ("MeshPolicy", "ClusterRbacConfig"))
    folder = "mixer/v1/config/client" if name.startswith("Quota") else f"{group.removesuffix('.istio.io')}/{version}"
    return Collection(f"istio/{folder}/{plural}", message, message_name, kind=kind)


_ALWAYS = frozenset(("DestinationRule", "EnvoyFilter", "Gateway", "ServiceEntry", "Sidecar", "VirtualService"))
"""Kinds that every Galley has."""

_KUBERNETES_TABLE: tuple[tuple[str, type[betterproto2.Message], str], ...] = (
    ("nodes", core.NodeSpec, "NodeSpec"),
    ("pods", core.Pod, "Pod"),
    ("endpoints", core.Endpoints, "Endpoints"),
    ("services", core.ServiceSpec, "ServiceSpec"),
)
"""Plural, body and its name, in an order in which what is needed comes before what needs it."""

_CURRENT = tuple(_current(kind) for kind in KINDS.values())
_LEGACY = tuple(_legacy(*row) for row in _LEGACY_TABLE)
_KUBERNETES = tuple(
    Collection(f"k8s/core/v1/{plural}", message, f"k8s.io.api.core.v1.{name}", kubernetes=True)
    for plural, message, name in _KUBERNETES_TABLE
)

COLLECTIONS: Mapping[str, Collection] = MappingProxyType(
    {
        c.name: c
        for c in (
            MESH_CONFIG,
            MESH_NETWORKS,
            SYNTHETIC,
            *sorted(_CURRENT, key=lambda c: c.kind is not None and c.kind.name in _ALWAYS),
            *_LEGACY,
            *_KUBERNETES,
        )
    }
)
"""Every collection that a sink of ours asks for, by name.

Those that not every Galley has come first: it ends the stream over the first one that it lacks, before it has sent
anything else.
"""


def _xds_names(collection: Collection) -> Iterator[str]:
    yield collection.xds_name
    if collection.kind is not None and len(collection.kind.versions) > 1:
        yield f"{collection.kind.group}/{collection.kind.versions[-1]}/{collection.kind.name}"


XDS_COLLECTIONS: Mapping[str, Collection] = MappingProxyType(
    {name: c for c in COLLECTIONS.values() if c.xds_name for name in _xds_names(c)}
)
"""By the names over xDS: in the oldest version, which older istiods know, and in the newest, which current ones know.

One server may answer under both; that is the same twice.
"""

BY_KIND: Mapping[str, Collection] = MappingProxyType(
    {c.kind.name: c for c in (*_CURRENT, *_LEGACY) if c.kind is not None}
)
"""The collection of configs that people write, by kind."""


def same_message(wanted: str, type_url: str) -> bool:
    """Whether a type URL names a message, in any version of its API: all versions of a message are the same."""
    return _unversioned(wanted) == _unversioned(type_url.rpartition("/")[2])


def _unversioned(message_name: str) -> tuple[list[str], str]:
    parts = message_name.split(".")
    return parts[:-2], parts[-1]
