"""The services of ServiceEntries as far as the mesh config's ``serviceEntryVisibility`` lets them be seen.

A policy narrows ``exportTo`` and never widens it. Its selectors are compared with the labels of the ServiceEntry's
namespace: those of a Namespace object, and the name that each has as a label. Rules: Istio's MeshConfig reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import ServiceEntryVisibility
from mesh_pilot.api.istio.mesh.v1alpha1 import ServiceEntryVisibilityVisibility as Visibility
from mesh_pilot.istio.gateway_api.selectors import NAME_LABEL, selects
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import Service
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.names import HIDDEN, PUBLIC, export_namespaces
from mesh_pilot.world.service_entries import services_of


def seen_services(config: Config, indexes: Indexes) -> tuple[Service, ...]:
    """The services that a ServiceEntry declares, exported no further than the mesh config lets them be."""
    services, mesh = services_of(config), indexes.mesh.peek(())
    policy = mesh.service_entry_visibility
    if policy is None or not policy.apply_to_sidecars or config.made_from:
        return services
    namespace = indexes.config.peek(ConfigKey("Namespace", "", config.namespace))
    labels = {NAME_LABEL: config.namespace, **(namespace.labels if namespace is not None else {})}
    visibility = _visibility(policy, labels)
    if visibility not in (Visibility.NONE, Visibility.NAMESPACE):
        return services
    default = mesh.default_service_export_to
    return tuple(attrs.evolve(each, export_to=_narrowed(each, visibility, default)) for each in services)


def _visibility(policy: ServiceEntryVisibility, labels: Mapping[str, str]) -> Visibility:
    """The visibility of the first policy whose rules all match; a rule without a selector matches nothing."""
    for each in policy.policies:
        selectors = [rule.namespace_selector for rule in each.matching_rules]
        if all(selector is not None and selects(selector, labels) for selector in selectors):
            return each.visibility
    return policy.default_visibility


def _narrowed(service: Service, visibility: Visibility, default: Iterable[str]) -> frozenset[str]:
    exported = export_namespaces(service.export_to, default, service.namespace)
    own = visibility is Visibility.NAMESPACE and not exported.isdisjoint((PUBLIC, service.namespace))
    return frozenset((service.namespace if own else HIDDEN,))
