"""Consul: its services, with their health, and Istio objects kept in its KV store.

    source = ConsulSource("consul", ConsulSettings(Agent("http://127.0.0.1:8500")))

`settings` is what can be set; `api` asks Consul over one httpx pool, through python-consul2; `follow` is one blocking
query after another, and `line` what all of them do while Consul does not answer; `instance` and `mapping` say what a
service of Consul means to a mesh; `configs` reads objects of the KV store; `source` holds it together.

Rules of blocking queries: Consul, "HTTP API: Features, Blocking Queries". May import: ``config``, ``model``, ``api``.
"""

from mesh_pilot.sources.consul.settings import Agent, Consistency, ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.sources.consul.source import ConsulSource

__all__ = ["Agent", "Consistency", "ConsulSettings", "ConsulSource", "CriticalRule", "WarningRule"]
