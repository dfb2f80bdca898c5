"""The settings of agents (PCDS): the effective ProxyConfig of each. The roots are added by ``AgentSettingsSet``."""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.envoy.envoy_filter.bootstrap import bootstrap_patches, encoded_patches
from mesh_pilot.identity.trust.roots import ROOTS_NAME
from mesh_pilot.mesh.envoy_filter_selection import FilterRef
from mesh_pilot.mesh.proxy.agent_config import AgentKey, agent_config
from mesh_pilot.mesh.proxy.scope import Plan
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import PROXY_CONFIG, Resource, make_resource
from mesh_pilot.world import View


@derived
def agent_config_plan(_: View, key: AgentKey, filters: tuple[FilterRef, ...], of: NodeType) -> Plan:
    """The plan with the one resource."""
    return {ROOTS_NAME: agent_config_resource.query(key, filters, of)}


@derived
def agent_config_resource(view: View, key: AgentKey, filters: tuple[FilterRef, ...], of: NodeType) -> Resource:
    """The effective ProxyConfig without the roots, which no derived value reads, and the patches of the bootstrap."""
    patches = dict.fromkeys(patch.config for patch in bootstrap_patches(view, filters, of))
    body = bytes(agent_config(view, key)) + encoded_patches(view, filters, of)
    return make_resource(ROOTS_NAME, PROXY_CONFIG, body, tuple(patches))
