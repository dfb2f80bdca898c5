"""The kinds of objects that are read: names, versions, messages and validation; and the reasons why others are not.

Design note. A row has the places of its message and its rules as text, and they are loaded with the first object of the
kind: most meshes have few kinds, and with all of them a start took a tenth longer. Alternatives that lose: functions in
the rows that import (37 of them); a module for each kind, as none has more than two lines.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.model.config import Problem

if TYPE_CHECKING:
    import betterproto2

    from mesh_pilot.istio.rules.context import Context

Validate = Callable[[Any, "Context"], Iterator[Problem]]
"""Yields the problems of a spec; paths start with `spec`."""


class KindError(ValueError):
    """An unknown kind or version of Istio's groups or the Gateway API's; the text lists the known ones."""


class Api(enum.Enum):
    """An API that kinds are of."""

    ISTIO = enum.auto()
    GATEWAY = enum.auto()
    """The Gateway API."""
    KUBERNETES = enum.auto()
    OWN = enum.auto()
    """Mesh-pilot's own: no other control plane knows them."""


@attrs.frozen
class Kind:
    """A kind of object."""

    name: str
    """Unique among all kinds: the one in `ConfigKey`."""
    message_class: str
    """Where `mesh_pilot.api` has its message, which is loaded with the first object of the kind."""
    rules: str = attrs.field(repr=False)
    """Where `istio.rules` has the function that validates it, which is loaded then, too."""
    group: str = attrs.field(kw_only=True)
    """Empty for Kubernetes' core group."""
    versions: tuple[str, ...] = attrs.field(kw_only=True)
    """Served versions, oldest first; they are equivalent."""
    cluster_scoped: bool = attrs.field(default=False, kw_only=True)
    legacy: bool = attrs.field(default=False, kw_only=True)
    """True if it was removed from Istio's API, so that current control planes have no collection of it."""
    api: Api = attrs.field(default=Api.ISTIO, kw_only=True)
    written: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True), kw_only=True)
    """The `kind` of its objects, if that is not its own name: two groups have a Gateway."""

    @property
    def message(self) -> type[betterproto2.Message]:
        return message_at(self.message_class)

    @property
    def validate(self) -> Validate:
        found: Validate = _loaded(f"mesh_pilot.istio.rules.{self.rules}")
        return found

    @property
    def plural(self) -> str:
        """As in URLs and `kubectl get`."""
        singular = self.written.lower()
        if singular.endswith("y") and singular[-2] not in "aeiou":
            return f"{singular[:-1]}ies"
        return f"{singular}es" if singular.endswith("s") else f"{singular}s"

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{version}" if self.group else version for version in self.versions)

    @property
    def type_url(self) -> str:
        """The type URL of an `Any` with its spec."""
        return "type.googleapis.com/" + self.message_name

    @property
    def message_name(self) -> str:
        """The full protobuf name of its message. The generator changes capitals (``HttpRouteSpec``): the kind's are
        right."""
        module, _, generated = self.message_class.rpartition(".")
        names = (self.written, f"{self.written}Spec")
        name = next((name for name in names if name.lower() == generated.lower()), generated)
        return f"{module}.{name}"


def message_at(place: str) -> type[betterproto2.Message]:
    """The message at a place in `mesh_pilot.api`, such as ``istio.networking.v1alpha3.Gateway``."""
    found: type[betterproto2.Message] = _loaded(f"mesh_pilot.api.{place}")
    return found


@cache
def _loaded(path: str) -> Any:
    """A member of a module."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


_ALL = ("v1alpha3", "v1beta1", "v1")
_BETA = ("v1beta1", "v1")
_OLDEST = ("v1alpha2", "v1beta1", "v1")
_EXPERIMENTAL = "gateway.networking.x-k8s.io"

_networking = partial(Kind, group="networking.istio.io", versions=_ALL)
_security = partial(Kind, group="security.istio.io", versions=_BETA)
_extensions = partial(Kind, group="extensions.istio.io", versions=("v1alpha1",))
_authentication = partial(Kind, group="authentication.istio.io", versions=("v1alpha1",), legacy=True)
_rbac = partial(Kind, group="rbac.istio.io", versions=("v1alpha1",), legacy=True)
_gateway_api = partial(Kind, group="gateway.networking.k8s.io", api=Api.GATEWAY)
_kubernetes = partial(Kind, versions=("v1",), api=Api.KUBERNETES)
_own = partial(Kind, group="policy.mesh-pilot.io", versions=("v1alpha1",), api=Api.OWN)

_TABLE = (
    _networking("VirtualService", "istio.networking.v1alpha3.VirtualService", "virtual_service.validate"),
    _networking("DestinationRule", "istio.networking.v1alpha3.DestinationRule", "destination_rule.validate"),
    _networking("ServiceEntry", "istio.networking.v1alpha3.ServiceEntry", "service_entry.validate"),
    _networking("WorkloadEntry", "istio.networking.v1alpha3.WorkloadEntry", "workloads.validate_workload_entry"),
    _networking("WorkloadGroup", "istio.networking.v1alpha3.WorkloadGroup", "workloads.validate_workload_group"),
    _networking("Gateway", "istio.networking.v1alpha3.Gateway", "gateway.validate"),
    _networking("Sidecar", "istio.networking.v1alpha3.Sidecar", "sidecar.validate"),
    _networking(
        "EnvoyFilter", "istio.networking.v1alpha3.EnvoyFilter", "envoy_filter.validate", versions=("v1alpha3",)
    ),
    _networking(
        "ProxyConfig", "istio.networking.v1beta1.ProxyConfig", "mesh_config.validate_proxy_config", versions=_BETA
    ),
    _security(
        "PeerAuthentication", "istio.security.v1beta1.PeerAuthentication", "authentication.validate_peer_authentication"
    ),
    _security(
        "RequestAuthentication",
        "istio.security.v1beta1.RequestAuthentication",
        "authentication.validate_request_authentication",
    ),
    _security("AuthorizationPolicy", "istio.security.v1beta1.AuthorizationPolicy", "authorization_policy.validate"),
    Kind(
        "Telemetry",
        "istio.telemetry.v1alpha1.Telemetry",
        "telemetry.validate",
        group="telemetry.istio.io",
        versions=("v1alpha1", "v1"),
    ),
    _extensions("WasmPlugin", "istio.extensions.v1alpha1.WasmPlugin", "extensions.validate_wasm_plugin"),
    _extensions(
        "TrafficExtension", "istio.extensions.v1alpha1.TrafficExtension", "extensions.validate_traffic_extension"
    ),
    _authentication("Policy", "istio.authentication.v1alpha1.Policy", "legacy_policies.validate_policy"),
    _authentication(
        "MeshPolicy",
        "istio.authentication.v1alpha1.Policy",
        "legacy_policies.validate_mesh_policy",
        cluster_scoped=True,
    ),
    _rbac("ServiceRole", "istio.rbac.v1alpha1.ServiceRole", "legacy_roles.validate_role"),
    _rbac("ServiceRoleBinding", "istio.rbac.v1alpha1.ServiceRoleBinding", "legacy_roles.validate_binding"),
    _rbac("RbacConfig", "istio.rbac.v1alpha1.RbacConfig", "legacy_roles.validate_rbac_config"),
    _rbac(
        "ClusterRbacConfig", "istio.rbac.v1alpha1.RbacConfig", "legacy_roles.validate_rbac_config", cluster_scoped=True
    ),
    _gateway_api(
        "GatewayClass",
        "k8s.io.gateway_api.v1.GatewayClassSpec",
        "gateway_listeners.validate_class",
        versions=_OLDEST,
        cluster_scoped=True,
    ),
    _gateway_api(
        "KubernetesGateway",
        "k8s.io.gateway_api.v1.GatewaySpec",
        "gateway_listeners.validate_gateway",
        versions=_OLDEST,
        written="Gateway",
    ),
    _gateway_api(
        "ListenerSet",
        "k8s.io.gateway_api.v1.ListenerSetSpec",
        "gateway_listeners.validate_listener_set",
        versions=("v1",),
    ),
    _gateway_api("HTTPRoute", "k8s.io.gateway_api.v1.HttpRouteSpec", "gateway_routes.validate_http", versions=_OLDEST),
    _gateway_api(
        "GRPCRoute", "k8s.io.gateway_api.v1.GrpcRouteSpec", "gateway_routes.validate_grpc", versions=("v1alpha2", "v1")
    ),
    _gateway_api(
        "TLSRoute",
        "k8s.io.gateway_api.v1.TlsRouteSpec",
        "gateway_routes.validate_tls",
        versions=("v1alpha2", "v1alpha3", "v1"),
    ),
    _gateway_api(
        "TCPRoute", "k8s.io.gateway_api.v1.TcpRouteSpec", "gateway_routes.validate_stream", versions=("v1alpha2", "v1")
    ),
    _gateway_api(
        "UDPRoute", "k8s.io.gateway_api.v1.UdpRouteSpec", "gateway_routes.validate_stream", versions=("v1alpha2", "v1")
    ),
    _gateway_api(
        "ReferenceGrant",
        "k8s.io.gateway_api.v1.ReferenceGrantSpec",
        "gateway_policies.validate_grant",
        versions=_OLDEST,
    ),
    _gateway_api(
        "BackendTLSPolicy",
        "k8s.io.gateway_api.v1.BackendTlsPolicySpec",
        "gateway_policies.validate_backend_tls",
        versions=("v1alpha3", "v1"),
    ),
    _gateway_api(
        "XBackendTrafficPolicy",
        "k8s.io.gateway_api.v1.BackendTrafficPolicySpec",
        "gateway_policies.validate_backend_traffic",
        group=_EXPERIMENTAL,
        versions=("v1alpha1",),
    ),
    _kubernetes(
        "Ingress", "k8s.io.api.networking.v1.IngressSpec", "ingresses.validate_ingress", group="networking.k8s.io"
    ),
    _kubernetes(
        "IngressClass",
        "k8s.io.api.networking.v1.IngressClassSpec",
        "ingresses.validate_class",
        group="networking.k8s.io",
        cluster_scoped=True,
    ),
    _kubernetes(
        "Namespace", "k8s.io.api.core.v1.NamespaceSpec", "ingresses.validate_namespace", group="", cluster_scoped=True
    ),
    _own("LocalRateLimit", "meshpilot.policy.v1alpha1.LocalRateLimit", "local_rate_limit.validate"),
    _own("GlobalRateLimit", "meshpilot.policy.v1alpha1.GlobalRateLimit", "global_rate_limit.validate"),
    _own("HealthCheck", "meshpilot.policy.v1alpha1.HealthCheck", "health_check.validate"),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE})
"""All kinds, by name."""

ISTIO_KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE if kind.api is Api.ISTIO})
"""The kinds of Istio's API, by name."""


def written_kind(name: str) -> str:
    """The `kind` of the objects whose keys have this kind."""
    kind = KINDS.get(name)
    return kind.written if kind is not None else name


SHORT_NAMES: Mapping[str, str] = {
    "vs": "VirtualService",
    "dr": "DestinationRule",
    "se": "ServiceEntry",
    "we": "WorkloadEntry",
    "wg": "WorkloadGroup",
    "gw": "Gateway",
    "pa": "PeerAuthentication",
    "ra": "RequestAuthentication",
    "ap": "AuthorizationPolicy",
    "gtw": "KubernetesGateway",
    "gc": "GatewayClass",
    "lset": "ListenerSet",
    "refgrant": "ReferenceGrant",
    "btlspolicy": "BackendTLSPolicy",
    "ing": "Ingress",
    "ns": "Namespace",
    "lrl": "LocalRateLimit",
    "grl": "GlobalRateLimit",
    "hc": "HealthCheck",
}
"""Short names, of kubectl where it has one."""


def kind_named(name: str) -> Kind | None:
    """The kind that is meant; None if there is none. It may have its group: ``gateways.networking.istio.io``."""
    return _by_name().get(name.lower())


@cache
def _by_name() -> Mapping[str, Kind]:
    found: dict[str, Kind] = {}
    for kind in KINDS.values():  # the first of two Gateways is Istio's
        for name in (kind.name, kind.plural, f"{kind.written}.{kind.group}", f"{kind.plural}.{kind.group}"):
            found.setdefault(name.lower(), kind)
    return {**found, **{short: KINDS[name] for short, name in SHORT_NAMES.items()}}


_WRITTEN: Mapping[tuple[str, str], Kind] = {(kind.group, kind.written): kind for kind in _TABLE}
"""Kinds by group and the name that objects have."""

_SHARED = frozenset((_EXPERIMENTAL, *(kind.group for kind in _TABLE if kind.api is Api.KUBERNETES)))
"""Groups with other kinds, which are not read."""

_GROUPS: Mapping[str, frozenset[str]] = {
    group: frozenset(kind.written for kind in _TABLE if kind.group == group)
    for group in {k.group: None for k in _TABLE if k.group not in _SHARED}
}
"""Istio's groups, the Gateway API's and our own, each with its kinds."""


def lookup(api_version: str, name: str) -> Kind | None:
    """The kind of an object; None for the groups of other APIs, whose objects are ignored.

    Raises KindError, with the known kinds or versions, for an unknown kind or version of Istio's groups or the Gateway
    API's and for a group that is probably a misspelling of one.
    """
    group, _, version = api_version.rpartition("/")
    kind = _WRITTEN.get((group, name))
    if kind is None and group in _SHARED:
        _refuse_misplaced(group, api_version, name)
        return None
    if kind is None and group not in _GROUPS:
        _refuse_misspelled(api_version, name)
        return None
    if kind is None:
        known = sorted(_GROUPS[group])
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise KindError(f"{group} has no kind {name}{hint}")
    if version not in kind.versions:
        raise KindError(f"{name} has no version {version}; served: {', '.join(kind.api_versions)}")
    return kind


def _refuse_misplaced(group: str, api_version: str, name: str) -> None:
    """Raise KindError for a kind of ours in a group of others, which has no such kind."""
    if not group:
        _refuse_misspelled(api_version, name)  # a group may be written without its version
    meant = next((kind for kind in _TABLE if kind.api is not Api.ISTIO and kind.written == name), None)
    if meant is not None and (group, name) not in _BY_KIND:
        raise KindError(f"there is no {name} in {api_version}; did you mean {meant.api_versions[-1]}?")


@lru_cache(1000)
def _refuse_misspelled(api_version: str, name: str) -> None:
    """Raise KindError for a group that is probably a misspelling of Istio's."""
    meant = meant_group(api_version, name, _GROUPS)
    if meant is None:
        return
    kind = _WRITTEN.get((meant, name))
    if kind is not None:
        hint = f"did you mean {kind.api_versions[-1]}?"
    elif meant:
        hint = f"did you mean {meant}?"
    else:
        hint = f"known: {', '.join(_GROUPS)}"
    raise KindError(f"there is no {name} in {api_version}; {hint}")


_SERVICE = "Kubernetes' services are not read from files; write a ServiceEntry with its endpoints"
_LEGACY = "Istio removed this API"

_BY_GROUP: Mapping[str, str] = {
    "config.istio.io": f"{_LEGACY}; write EnvoyFilter, Telemetry or AuthorizationPolicy",
    "install.istio.io": "nothing is installed here; its meshConfig goes into the file of --mesh-config",
    "operator.istio.io": "nothing is installed here",
}
"""Groups that users may expect to have an effect, and why they have none."""

_BY_KIND: Mapping[tuple[str, str], str] = {
    (_EXPERIMENTAL, "XListenerSet"): "it became ListenerSet of gateway.networking.k8s.io/v1",
    (_EXPERIMENTAL, "XBackend"): "experiments of the Gateway API are not read; write a ServiceEntry",
    (_EXPERIMENTAL, "XMesh"): "experiments of the Gateway API are not read",
    ("extensions", "Ingress"): "Kubernetes removed this version; write networking.k8s.io/v1",
    ("", "Service"): _SERVICE,
    ("", "Endpoints"): _SERVICE,
    ("discovery.k8s.io", "EndpointSlice"): _SERVICE,
}
"""The same for single kinds of groups with many others, by group (without version) and kind."""

_NEAR = 0.88
"""Similarity of two groups above which one is taken for a misspelling of the other."""


def group_of(api_version: str) -> str:
    """The group of an apiVersion such as ``apps/v1``; empty for Kubernetes' core group (``v1``)."""
    return api_version.rpartition("/")[0]


def reason_ignored(api_version: str, kind: str) -> str:
    """The reason why objects of a kind are not read, for kinds that users may expect to have an effect; else empty."""
    group = group_of(api_version)
    return _BY_GROUP.get(group) or _BY_KIND.get((group, kind), "")


def meant_group(api_version: str, kind: str, groups: Mapping[str, Iterable[str]]) -> str | None:
    """The group among ``groups`` that an unknown apiVersion probably means.

    ``groups`` maps each of Istio's groups to its kinds. Empty if it looks like a group of Istio but matches none; None
    if it is a group of another API.
    """
    group = group_of(api_version)
    if group in _BY_GROUP or (group, kind) in _BY_KIND:
        return None
    if not group and api_version in groups:
        return api_version  # the version is missing, not the group
    if not group:
        return next((ours for ours, kinds in groups.items() if kind in kinds), None)
    if near := difflib.get_close_matches(group.lower(), groups, n=1, cutoff=_NEAR):
        return near[0]
    if group.lower().endswith(".istio.io"):
        return next((ours for ours, kinds in groups.items() if kind in kinds), "")
    return None
