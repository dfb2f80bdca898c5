"""Parents of routes: which listeners and services a route is attached to, and what its status says about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from mesh_pilot.api.k8s.io.gateway_api.v1 import ParentReference
from mesh_pilot.istio.gateway_api.conditions import Conditions, Fault
from mesh_pilot.istio.gateway_api.values import (
    CONTROLLER,
    GROUP,
    KUBERNETES_GATEWAY,
    Json,
    Objects,
    ParentListener,
    StatusCondition,
)
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_covers, host_matches

MESH = "mesh"
_NO_PARENT = "NoMatchingParent"
_NOT_ALLOWED = "NotAllowedByListeners"
_NO_HOSTNAME = "NoMatchingListenerHostname"
_RANKS = (_NOT_ALLOWED, _NO_HOSTNAME, _NO_PARENT)
"""The reasons by rank: of the outcomes for several listeners, the first of these is told."""

_KINDS = {
    (GROUP, "Gateway"): KUBERNETES_GATEWAY,
    (GROUP, "ListenerSet"): "ListenerSet",
    ("", "Service"): "Service",
    ("networking.istio.io", "ServiceEntry"): "ServiceEntry",
}
"""The kinds of parents, by group and written kind."""

_MESH_KINDS = ("HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute")


@attrs.frozen
class Attachment:
    """A route at one listener, or at a service of the mesh; if it is refused there, with the reason."""

    reference: ParentReference
    index: int
    """The index of the reference in the route."""
    parent: ConfigKey
    listener: ParentListener | None
    """None: the parent is a service."""
    refused: Fault | None
    others: frozenset[str]
    """Host names of other listeners of the same port and protocol, whose requests are theirs."""

    @property
    def gateway(self) -> str:
        """The member of a VirtualService's ``gateways``."""
        return MESH if self.listener is None else self.listener.gateway

    def takes(self, host: str) -> bool:
        """False for a host of the route that another listener is the better one for."""
        own = self.listener.hostname if self.listener is not None else ""
        if own and not own.startswith("*"):
            return True
        if own and not host_matches(host, own):
            return False
        return not any(len(own) <= len(other) and host_covers(other, host) for other in self.others)


def attachments(route: Config, references: Sequence[ParentReference], objects: Objects) -> list[Attachment]:
    """The attachments to all parents that may be ours, refused or not, in a stable order."""
    found: list[Attachment] = []
    for index, reference in enumerate(references):
        parent = parent_key(route, reference)
        if parent is None:
            continue  # it may be another controller's
        if parent.kind in ("Service", "ServiceEntry"):
            refused = _refused_by_service(route, parent, objects)
            found.append(Attachment(reference, index, parent, None, refused, frozenset()))
            continue
        listeners = objects.listeners(parent)
        for listener in listeners:
            others = frozenset(
                other.hostname
                for other in listeners
                if other is not listener and (other.port, other.protocol) == (listener.port, listener.protocol)
            )
            refused = _refused_by_listener(route, reference, listener)
            found.append(Attachment(reference, index, parent, listener, refused, others - {listener.hostname}))
    return sorted(found, key=lambda each: _text(each.reference, route.namespace))


def parent_key(route: Config, reference: ParentReference) -> ConfigKey | None:
    """The object that a reference names; None for a kind that is not a parent here."""
    group = GROUP if reference.group is None else reference.group
    kind = _KINDS.get((group, reference.kind or "Gateway"))
    return ConfigKey(kind, reference.namespace or route.namespace, reference.name) if kind is not None else None


def _text(reference: ParentReference, namespace: str) -> str:
    group = GROUP if reference.group is None else reference.group
    section, port = reference.section_name or "", reference.port or 0
    return f"{group}/{reference.kind or 'Gateway'}/{reference.name}/{section}/{port}.{reference.namespace or namespace}"


def _refused_by_service(route: Config, parent: ConfigKey, objects: Objects) -> Fault | None:
    if parent.kind == "ServiceEntry":
        there = objects.config("ServiceEntry", parent.namespace, parent.name) is not None
        what = "service entry"
    else:
        host = objects.service_host(parent.name, parent.namespace)
        there, what = objects.service(host, parent.namespace) is not None, "service"
    if not there:
        return Fault(_NO_PARENT, f'parent {what}: "{parent.name}" not found')
    return None if route.key.kind in _MESH_KINDS else _kind_refused(route)


def _kind_refused(route: Config) -> Fault:
    return Fault(_NOT_ALLOWED, f"kind {GROUP}/v1/{route.key.kind} is not allowed")


def _refused_by_listener(route: Config, reference: ParentReference, listener: ParentListener) -> Fault | None:
    if reference.port and reference.port != listener.port:
        return Fault(_NO_PARENT, f"port {reference.port} not found")
    if reference.section_name and reference.section_name != listener.section:
        return Fault(_NO_PARENT, f'sectionName "{reference.section_name}" not found')
    hostnames = getattr(route.spec, "hostnames", None) or ["*"]
    is_host = False
    for allowed in listener.hosts:
        namespace, slash, pattern = allowed.rpartition("/")
        if any(host_matches(pattern, hostname) for hostname in hostnames):
            is_host = True
            if not slash or namespace in ("*", route.namespace):
                break
    else:
        if listener.hosts:
            return _refused_host(route, listener, is_host)
    if (GROUP, route.key.kind) not in listener.kinds:
        return _kind_refused(route)
    return None


def _refused_host(route: Config, listener: ParentListener, is_host: bool) -> Fault:
    if is_host:
        reason = (
            f'hostnames matched parent hostname "{listener.hostname}", but namespace "{route.namespace}" is not '
            "allowed by the parent"
        )
        return Fault(_NOT_ALLOWED, reason)
    return Fault(_NO_HOSTNAME, f'no hostnames matched parent hostname "{listener.hostname}"')


def parent_statuses(
    route: Config, found: Sequence[Attachment], fault: Fault | None, mesh_fault: Fault | None
) -> list[dict[str, Any]]:
    """The entries of a route's status, one for each reference; the faults are those of its rules."""
    by_reference: dict[int, list[Attachment]] = {}
    for each in found:
        by_reference.setdefault(each.index, []).append(each)
    entries = []
    for outcomes in by_reference.values():
        reference = outcomes[0].reference
        entry = {
            "parentRef": to_json(reference),
            "controllerName": CONTROLLER,
            "conditions": _conditions(outcomes, mesh_fault if outcomes[0].listener is None else fault),
        }
        entries.append((_text(reference, route.namespace), entry))
    entries.sort(key=lambda each: each[0], reverse=True)
    return [entry for _, entry in entries]


def _conditions(outcomes: Sequence[Attachment], fault: Fault | None) -> list[Json]:
    accepted = sum(each.refused is None for each in outcomes)
    bound = f", bound to {accepted} parents" if accepted > 1 else ""
    conditions = Conditions.fine("All references resolved", "ResolvedRefs")
    conditions.put(StatusCondition("Accepted", True, "Accepted", f"Route was valid{bound}"))
    if fault is not None:
        conditions.fail("ResolvedRefs", fault)
    if not accepted:
        reasons = [each.refused for each in outcomes if each.refused is not None]
        first = min(reasons, key=lambda each: _RANKS.index(each.reason))
        messages = [each.message for each in reasons if each.reason == first.reason]
        conditions.fail("Accepted", Fault(first.reason, "; ".join(messages)))
    return conditions.to_json()
