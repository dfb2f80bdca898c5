"""The kinds of objects that are read: names, versions, messages and validation; and the reasons why others are not."""

from __future__ import annotations

import difflib
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
from mesh_pilot.config.validation import (
    authentication,
    authorization_policy,
    destination_rule,
    envoy_filter,
    extensions,
    gateway,
    legacy_policies,
    legacy_roles,
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
    """An unknown kind or version of Istio's groups; the text lists the known ones."""


@attrs.frozen
class Kind:
    """A kind of object."""

    name: str
    group: str
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

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{version}" for version in self.versions)

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
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _TABLE})
"""By name."""

_GROUPS: Mapping[str, frozenset[str]] = {
    group: frozenset(kind.name for kind in _TABLE if kind.group == group) for group in {k.group: None for k in _TABLE}
}
"""Istio's groups, each with its kinds."""


def lookup(api_version: str, name: str) -> Kind | None:
    """The kind of an object; None for the groups of other APIs, whose objects are ignored.

    Raises KindError, with the known kinds or versions, for an unknown kind or version of Istio's groups and for a group
    that is probably a misspelling of one.
    """
    group, _, version = api_version.rpartition("/")
    if group not in _GROUPS:
        _refuse_misspelled(api_version, name)
        return None
    kind = KINDS.get(name)
    if kind is None or kind.group != group:
        known = sorted(kind.name for kind in _TABLE if kind.group == group)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise KindError(f"{group} has no kind {name}; {hint}")
    if version not in kind.versions:
        raise KindError(f"{name} has no version {version}; served: {', '.join(kind.api_versions)}")
    return kind


@lru_cache(1000)
def _refuse_misspelled(api_version: str, name: str) -> None:
    """Raise KindError for a group that is probably a misspelling of Istio's."""
    meant = meant_group(api_version, name, _GROUPS)
    if meant is None:
        return
    kind = KINDS.get(name)
    if kind is not None and kind.group == meant:
        hint = f"did you mean {kind.api_versions[-1]}?"
    elif meant:
        hint = f"did you mean {meant}?"
    else:
        hint = f"known: {', '.join(_GROUPS)}"
    raise KindError(f"there is no {name} in {api_version}; {hint}")


_GATEWAY_API = "the Gateway API is not read; write Istio's Gateway and VirtualService"
_INGRESS = "an Ingress is not read; write Istio's Gateway and VirtualService"
_SERVICE = "Kubernetes' services are not read from files; write a ServiceEntry with its endpoints"
_LEGACY = "Istio removed this API"

_BY_GROUP: Mapping[str, str] = {
    "gateway.networking.k8s.io": _GATEWAY_API,
    "gateway.networking.x-k8s.io": _GATEWAY_API,
    "config.istio.io": f"{_LEGACY}; write EnvoyFilter, Telemetry or AuthorizationPolicy",
    "install.istio.io": "nothing is installed here; its meshConfig goes into the file of --mesh-config",
    "operator.istio.io": "nothing is installed here",
}
"""Groups that users may expect to have an effect, and why they have none."""

_BY_KIND: Mapping[tuple[str, str], str] = {
    ("networking.k8s.io", "Ingress"): _INGRESS,
    ("extensions", "Ingress"): _INGRESS,
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
