"""API groups of objects that are not ours: which of them are expected, and which are a mistake in writing ours.

Used by every place that reads objects by their apiVersion: files, Consul's KV, ``analyze``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_GATEWAY_API = "the Gateway API is not read; write Istio's Gateway and VirtualService"
_INGRESS = "an Ingress is not read; write Istio's Gateway and VirtualService"
_SERVICE = "Kubernetes' services are not read from files; write a ServiceEntry with its endpoints"
_LEGACY = "Istio removed this API"

_BY_GROUP: Mapping[str, str] = {
    "gateway.networking.k8s.io": _GATEWAY_API,
    "gateway.networking.x-k8s.io": _GATEWAY_API,
    "authentication.istio.io": f"{_LEGACY}; write PeerAuthentication and RequestAuthentication",
    "rbac.istio.io": f"{_LEGACY}; write AuthorizationPolicy",
    "config.istio.io": f"{_LEGACY}; write EnvoyFilter, Telemetry or AuthorizationPolicy",
    "install.istio.io": "nothing is installed here; its meshConfig goes into the file of --mesh-config",
    "operator.istio.io": "nothing is installed here",
}
"""Groups that people may expect to have an effect, and why they have none."""

_BY_KIND: Mapping[tuple[str, str], str] = {
    ("networking.k8s.io", "Ingress"): _INGRESS,
    ("extensions", "Ingress"): _INGRESS,
    ("", "Service"): _SERVICE,
    ("", "Endpoints"): _SERVICE,
    ("discovery.k8s.io", "EndpointSlice"): _SERVICE,
}
"""The same for kinds in groups that hold much else; by group without version, and kind."""

_NEAR = 0.88
"""How alike two groups must be for one to be a slip of the other."""


def group_of(api_version: str) -> str:
    """The group of an apiVersion such as ``apps/v1``; empty for Kubernetes' core, such as ``v1``."""
    return api_version.rpartition("/")[0]


def reason_ignored(api_version: str, kind: str) -> str:
    """Why objects of a kind that one may expect to be read are not; empty where nobody would."""
    group = group_of(api_version)
    return _BY_GROUP.get(group) or _BY_KIND.get((group, kind), "")


def meant_group(api_version: str, kind: str, groups: Mapping[str, Iterable[str]]) -> str | None:
    """The group of ours that an apiVersion of another group was probably meant to have.

    ``groups``: ours, each with its kinds. Empty: it is written as a group of Istio's, but which one can't be guessed.
    None: it is a group of somebody else.
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
