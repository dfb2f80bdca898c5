"""The settings of agents (PCDS): the effective ProxyConfig of each. The roots are added by ``AgentSettingsSet``."""

from __future__ import annotations

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.agent_config import AgentKey, agent_config
from mesh_pilot.mesh.proxy.scope import Plan
from mesh_pilot.model.resource import PROXY_CONFIG, Resource, make_resource
from mesh_pilot.security.trusted_roots import ROOTS_NAME
from mesh_pilot.world import View


@derived
def agent_config_plan(view: View, key: AgentKey) -> Plan:
    """The plan with the one resource."""
    return {ROOTS_NAME: agent_config_resource.query(key)}


@derived
def agent_config_resource(view: View, key: AgentKey) -> Resource:
    """The effective ProxyConfig without the roots, which no derived value reads."""
    return make_resource(ROOTS_NAME, PROXY_CONFIG, bytes(agent_config(view, key)))
