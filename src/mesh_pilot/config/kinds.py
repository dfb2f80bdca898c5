"""The kinds of objects that are read: names, versions, messages and validation; and the reasons why others are not."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs
import betterproto2

from mesh_pilot.api.istio.authentication import v1alpha1 as authentication_api
from mesh_pilot.api.istio.extensions import v1alpha1 as extensions_api
from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.istio.networking import v1beta1 as networking_v1beta1
from mesh_pilot.api.istio.rbac import v1alpha1 as rbac
from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.api.istio.telemetry import v1alpha1 as telemetry
from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.api.k8s.io.api.networking import v1 as ingress
from mesh_pilot.api.k8s.io.gateway_api import v1 as gateway_api
from mesh_pilot.api.meshpilot.policy import v1alpha1 as own
from mesh_pilot.config.validation import (
    authentication,
    authorization_policy,
    destination_rule,
    envoy_filter,
    extensions,
    gateway,
    gateway_listeners,
    gateway_policies,
    gateway_routes,
    health_check,
    ingresses,
    legacy_policies,
    legacy_roles,
    local_rate_limit,
    mesh_config,
    service_entry,
    sidecar,
    virtual_service,
    workloads,
)
from mesh_pilot.config.validation import telemetry as telemetry_rules
from mesh_pilot.config.validation.context import Context
from mesh_pilot.model.config import Problem

Validate = Callable[[Any, Context], Iterator[Problem]]
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
    group: str
    """Empty for Kubernetes' core group."""
    versions: tuple[str, ...]
    """Served versions, oldest first; they are equivalent."""
    plural: str
    """As in URLs and `kubectl get`."""
    message: type[betterproto2.Message]
    validate: Validate = attrs.field(repr=False)
    cluster_scoped: bool = False
    legacy: bool = False
    """Removed from Istio's API; of current control planes' collections it is none."""
    proto_name: str = ""
    """The name of its message, if that is not its own."""
    api: Api = Api.ISTIO
    written: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))
    """The `kind` of its objects, if that is not its own name: two groups have a Gateway."""

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{version}" if self.group else version for version in self.versions)

    @property
    def type_url(self) -> str:
        """The type URL of an `Any` with its spec."""
        return "type.googleapis.com/" + self.message_name

    @property
    def message_name(self) -> str:
        """The full protobuf name of its message."""
        package = self.message.__module__.removeprefix("mesh_pilot.api.")
        return f"{package}.{self.proto_name or self.name}"


_NETWORKING = "networking.istio.io"
_SECURITY = "security.istio.io"
_OWN = "policy.mesh-pilot.io"
_ALL = ("v1alpha3", "v1beta1", "v1")
_BETA = ("v1beta1", "v1")


def _authentication_kind(name: str, plural: str, validate: Validate, *, cluster_scoped: bool = False) -> Kind:
    group, message = "authentication.istio.io", authentication_api.Policy
    return Kind(name, group, ("v1alpha1",), plural, message, validate, cluster_scoped, True, "Policy")


def _rbac_kind(
    name: str,
    plural: str,
    message: type[betterproto2.Message],
    validate: Validate,
    *,
    proto_name: str = "",
    cluster_scoped: bool = False,
) -> Kind:
    return Kind(name, "rbac.istio.io", ("v1alpha1",), plural, message, validate, cluster_scoped, True, proto_name)


_GATEWAY_API = "gateway.networking.k8s.io"
_EXPERIMENTAL = "gateway.networking.x-k8s.io"
_OLDEST = ("v1alpha2", "v1beta1", "v1")


def _gateway_api_kind(
    name: str,
    versions: tuple[str, ...],
    plural: str,
    message: type[betterproto2.Message],
    validate: Validate,
    *,
    group: str = _GATEWAY_API,
    written: str = "",
    cluster_scoped: bool = False,
) -> Kind:
    proto_name, written = f"{(written or name).removeprefix('X')}Spec", written or name
    return Kind(
        name, group, versions, plural, message, validate, cluster_scoped, False, proto_name, Api.GATEWAY, written
    )


def _kubernetes_kind(
    name: str,
    group: str,
    plural: str,
    message: type[betterproto2.Message],
    validate: Validate,
    *,
    cluster_scoped: bool = False,
) -> Kind:
    proto_name = f"{name}Spec"
    return Kind(name, group, ("v1",), plural, message, validate, cluster_scoped, False, proto_name, Api.KUBERNETES)


_TABLE = (
    Kind("VirtualService", _NETWORKING, _ALL, "virtualservices", networking.VirtualService, virtual_service.validate),
    Kind(
        "DestinationRule", _NETWORKING, _ALL, "destinationrules", networking.DestinationRule, destination_rule.validate
    ),
    Kind("ServiceEntry", _NETWORKING, _ALL, "serviceentries", networking.ServiceEntry, service_entry.validate),
    Kind(
        "WorkloadEntry",
        _NETWORKING,
        _ALL,
        "workloadentries",
        networking.WorkloadEntry,
        workloads.validate_workload_entry,
    ),
    Kind(
        "WorkloadGroup",
        _NETWORKING,
        _ALL,
        "workloadgroups",
        networking.WorkloadGroup,
        workloads.validate_workload_group,
    ),
    Kind("Gateway", _NETWORKING, _ALL, "gateways", networking.Gateway, gateway.validate),
    Kind("Sidecar", _NETWORKING, _ALL, "sidecars", networking.Sidecar, sidecar.validate),
    Kind("EnvoyFilter", _NETWORKING, ("v1alpha3",), "envoyfilters", networking.EnvoyFilter, envoy_filter.validate),
    Kind(
        "ProxyConfig",
        _NETWORKING,
        _BETA,
        "proxyconfigs",
        networking_v1beta1.ProxyConfig,
        mesh_config.validate_proxy_config,
    ),
    Kind(
        "PeerAuthentication",
        _SECURITY,
        _BETA,
        "peerauthentications",
        security.PeerAuthentication,
        authentication.validate_peer_authentication,
    ),
    Kind(
        "RequestAuthentication",
        _SECURITY,
        _BETA,
        "requestauthentications",
        security.RequestAuthentication,
        authentication.validate_request_authentication,
    ),
    Kind(
        "AuthorizationPolicy",
        _SECURITY,
        _BETA,
        "authorizationpolicies",
        security.AuthorizationPolicy,
        authorization_policy.validate,
    ),
    Kind(
        "Telemetry",
        "telemetry.istio.io",
        ("v1alpha1", "v1"),
        "telemetries",
        telemetry.Telemetry,
        telemetry_rules.validate,
    ),
    Kind(
        "WasmPlugin",
        "extensions.istio.io",
        ("v1alpha1",),
        "wasmplugins",
        extensions_api.WasmPlugin,
        extensions.validate_wasm_plugin,
    ),
    Kind(
        "TrafficExtension",
        "extensions.istio.io",
        ("v1alpha1",),
        "trafficextensions",
        extensions_api.TrafficExtension,
        extensions.validate_traffic_extension,
    ),
    _authentication_kind("Policy", "policies", legacy_policies.validate_policy),
    _authentication_kind("MeshPolicy", "meshpolicies", legacy_policies.validate_mesh_policy, cluster_scoped=True),
    _rbac_kind("ServiceRole", "serviceroles", rbac.ServiceRole, legacy_roles.validate_role),
    _rbac_kind("ServiceRoleBinding", "servicerolebindings", rbac.ServiceRoleBinding, legacy_roles.validate_binding),
    _rbac_kind("RbacConfig", "rbacconfigs", rbac.RbacConfig, legacy_roles.validate_rbac_config),
    _rbac_kind(
        "ClusterRbacConfig",
        "clusterrbacconfigs",
        rbac.RbacConfig,
        legacy_roles.validate_rbac_config,
        proto_name="RbacConfig",
        cluster_scoped=True,
    ),
    _gateway_api_kind(
        "GatewayClass",
        _OLDEST,
        "gatewayclasses",
        gateway_api.GatewayClassSpec,
        gateway_listeners.validate_class,
        cluster_scoped=True,
    ),
    _gateway_api_kind(
        "KubernetesGateway",
        _OLDEST,
        "gateways",
        gateway_api.GatewaySpec,
        gateway_listeners.validate_gateway,
        written="Gateway",
    ),
    _gateway_api_kind(
        "ListenerSet", ("v1",), "listenersets", gateway_api.ListenerSetSpec, gateway_listeners.validate_listener_set
    ),
    _gateway_api_kind("HTTPRoute", _OLDEST, "httproutes", gateway_api.HttpRouteSpec, gateway_routes.validate_http),
    _gateway_api_kind(
        "GRPCRoute", ("v1alpha2", "v1"), "grpcroutes", gateway_api.GrpcRouteSpec, gateway_routes.validate_grpc
    ),
    _gateway_api_kind(
        "TLSRoute", ("v1alpha2", "v1alpha3", "v1"), "tlsroutes", gateway_api.TlsRouteSpec, gateway_routes.validate_tls
    ),
    _gateway_api_kind(
        "TCPRoute", ("v1alpha2", "v1"), "tcproutes", gateway_api.TcpRouteSpec, gateway_routes.validate_stream
    ),
    _gateway_api_kind(
        "UDPRoute", ("v1alpha2", "v1"), "udproutes", gateway_api.UdpRouteSpec, gateway_routes.validate_stream
    ),
    _gateway_api_kind(
        "ReferenceGrant",
        _OLDEST,
        "referencegrants",
        gateway_api.ReferenceGrantSpec,
        gateway_policies.validate_grant,
    ),
    _gateway_api_kind(
        "BackendTLSPolicy",
        ("v1alpha3", "v1"),
        "backendtlspolicies",
        gateway_api.BackendTlsPolicySpec,
        gateway_policies.validate_backend_tls,
    ),
    _gateway_api_kind(
        "XBackendTrafficPolicy",
        ("v1alpha1",),
        "xbackendtrafficpolicies",
        gateway_api.BackendTrafficPolicySpec,
        gateway_policies.validate_backend_traffic,
        group=_EXPERIMENTAL,
    ),
    _kubernetes_kind("Ingress", "networking.k8s.io", "ingresses", ingress.IngressSpec, ingresses.validate_ingress),
    _kubernetes_kind(
        "IngressClass",
        "networking.k8s.io",
        "ingressclasses",
        ingress.IngressClassSpec,
        ingresses.validate_class,
        cluster_scoped=True,
    ),
    _kubernetes_kind(
        "Namespace", "", "namespaces", core.NamespaceSpec, ingresses.validate_namespace, cluster_scoped=True
    ),
    Kind(
        "LocalRateLimit",
        _OWN,
        ("v1alpha1",),
        "localratelimits",
        own.LocalRateLimit,
        local_rate_limit.validate,
        api=Api.OWN,
    ),
    Kind("HealthCheck", _OWN, ("v1alpha1",), "healthchecks", own.HealthCheck, health_check.validate, api=Api.OWN),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE})
"""All kinds, by name."""

ISTIO_KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE if kind.api is Api.ISTIO})
"""The kinds of Istio's API, by name."""


def written_kind(name: str) -> str:
    """The `kind` of the objects whose keys have this kind."""
    kind = KINDS.get(name)
    return kind.written if kind is not None else name


_WRITTEN: Mapping[tuple[str, str], Kind] = {(kind.group, kind.written): kind for kind in _TABLE}
"""By group and the name that objects have."""

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
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise KindError(f"{group} has no kind {name}; {hint}")
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
