"""Consul: its services, with their health, and Istio objects kept in its KV store.

    source = ConsulSource("consul", ConsulSettings(Agent("http://127.0.0.1:8500")))

`settings` is what can be set; `api` asks Consul over one httpx client, through python-consul2, on the
connections of `pool`; `follow` is one blocking query after another, and `line` what all of them do while Consul does
not answer; `crowd`, `triggers` and `sweeper` share out few queries among many services, `narrowing` rules services
out; `instance` and `mapping` say what a service of Consul means to a mesh; `configs` reads objects of the KV store;
`source` holds it together.

Rules of blocking queries: Consul, "HTTP API: Features, Blocking Queries". May import: ``config``, ``model``, ``api``.
"""

from collections.abc import Sequence

from mesh_pilot.sources.consul.api import ConsulError, check_files
from mesh_pilot.sources.consul.settings import Agent, Consistency, ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.sources.consul.source import ConsulSource

__all__ = [
    "Agent",
    "Consistency",
    "ConsulError",
    "ConsulSettings",
    "ConsulSource",
    "CriticalRule",
    "WarningRule",
    "check_files",
    "consul_sources",
]


def consul_sources(datacenters: Sequence[ConsulSettings]) -> list[ConsulSource]:
    """A source a datacenter: ``consul`` is the mesh's own, the others are called by their number or name."""
    sources = []
    for rank, settings in enumerate(datacenters):
        name = "consul" if rank == 0 else f"consul-{settings.datacenter or rank + 1}"
        sources.append(ConsulSource(name, settings))
    return sources
