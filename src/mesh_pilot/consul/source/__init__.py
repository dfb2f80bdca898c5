"""Consul: its services, with their health, and Istio objects kept in its KV store.

    source = ConsulSource("consul", ConsulSettings(Agent("http://127.0.0.1:8500")))

- `source`: the source itself. `change_finder`: which services have changed, of those that have no query.
- `instance`, `mapping`: a service of Consul in the terms of the mesh; `ports`, `names`: its ports and its hosts.
  `configs`: objects of the KV store.
"""

from collections.abc import Sequence

import attrs

from mesh_pilot.consul.client.client import ConsulError, check_files
from mesh_pilot.consul.client.settings import Agent, Consistency, ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.consul.source.source import ConsulSource

__all__ = [
    "Agent",
    "Consistency",
    "ConsulError",
    "ConsulRegistry",
    "ConsulSettings",
    "ConsulSource",
    "CriticalRule",
    "WarningRule",
]


@attrs.frozen
class ConsulRegistry:
    """Datacenters of Consul; implements `sources.base.contract.Registry`."""

    datacenters: tuple[ConsulSettings, ...]
    """The mesh's own first."""
    short_names: bool | None = None
    """True if bare names are services of Consul; None: if no other source has short names."""

    def check(self) -> None:
        for datacenter in self.datacenters:
            check_files(datacenter.agent)

    def sources(self) -> Sequence[ConsulSource]:
        """A source a datacenter: ``consul`` is the mesh's own, the others are called by their name or number.

        And one a peer of the mesh's own datacenter, after all of them.
        """
        sources = []
        for rank, settings in enumerate(self.datacenters):
            name = "consul" if rank == 0 else f"consul-{settings.datacenter or rank + 1}"
            sources.append(ConsulSource(name, settings))
        own = self.datacenters[0]
        sources += (ConsulSource(f"consul-peer-{peer}", own.for_peer(peer)) for peer in own.peers)
        return sources

    def origins(self) -> Sequence[str]:
        return [f"Consul at {datacenter.agent.address}" for datacenter in self.datacenters]

    def short_name_domain(self, *, is_alone: bool) -> str:
        is_wanted = is_alone if self.short_names is None else self.short_names
        return f"service.{self.datacenters[0].domain}" if is_wanted else ""
