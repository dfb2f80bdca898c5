"""Where zone aware load balancing is asked for: Envoys need a local cluster for it, which is in their bootstrap."""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.world.names import export_namespaces, exported_to
from mesh_pilot.world.view import View


@derived
def wants_local_clusters(view: View, namespace: str) -> bool:
    """True if the Envoys of a namespace are to have a local cluster unless they say otherwise.

    Another namespace cannot say so, as it cannot have ProxyConfigs for them: their Envoys are restarted for it.
    """
    near = (view.root_namespace, namespace)
    return _is_on_everywhere(view) or any(rule.namespace in near for rule in view.zone_aware_rules())


@derived
def zone_aware_objects(view: View, namespace: str) -> tuple[str, ...]:
    """The mesh config, or the DestinationRules for clients of a namespace, that turn zone aware load balancing on."""
    default = view.mesh().default_destination_rule_export_to
    found = ["MeshConfig"] if _is_on_everywhere(view) else []
    for key in view.zone_aware_rules():
        rule = view.config(key)
        if rule is not None and exported_to(export_namespaces(rule.spec.export_to, default, key.namespace), namespace):
            found.append(str(key))
    return tuple(found)


def _is_on_everywhere(view: View) -> bool:
    setting = view.mesh().zone_aware_lb_setting
    return setting is not None and setting.enabled is not False
