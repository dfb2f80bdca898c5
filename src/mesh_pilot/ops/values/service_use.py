"""The use of services: the proxies that can call one, the routes that it has, and whether mTLS protects the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.mesh.names.resources import outbound, outbound_datagrams
from mesh_pilot.mesh.policies.peer_authentication import client_mtls
from mesh_pilot.model.resource import CLUSTER, Resource
from mesh_pilot.model.service import Service
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.routed_hosts import RoutedHosts


@attrs.frozen
class ServiceUse:
    """The use of a service."""

    clients: int
    """Connected proxies that have a cluster for it."""
    routes: int
    """VirtualServices that have its host."""
    mtls: str
    """``STRICT``, ``PERMISSIVE`` or ``DISABLE`` to clients; ``MIXED`` where ports differ; empty outside the mesh."""


NO_USE = ServiceUse(0, 0, "")
"""That of a service before it is looked at."""


class ServiceUses:
    """The uses of services of one plane, at the time of the call."""

    def __init__(self, state: PlaneState) -> None:
        self._view = state.world.view
        streams = ((each.proxy, each.stream) for each in state.xds.status.proxies())
        self._held: dict[int, tuple[Mapping[str, Resource], list[str]]] = {}
        """Clusters with the names of the proxies that hold them, by identity: proxies of one scope share them."""
        for proxy, own in streams:
            if proxy is not None and own is not None:
                held = own.client_state(CLUSTER)
                self._held.setdefault(id(held), (held, []))[1].append(proxy.name)
        self._routed = RoutedHosts(state)

    def of(self, service: Service) -> ServiceUse:
        """That of one service."""
        clients, routes = sum(1 for _ in self.clients(service)), len(self._routed.by(service.host))
        return ServiceUse(clients, routes, self._mtls(service))

    def clients(self, service: Service) -> Iterator[str]:
        """The names of the connected proxies that have a cluster for it."""
        names = [outbound(service.host, port.number) for port in service.ports]
        names += (outbound_datagrams(service.host, port.number) for port in service.ports)
        for held, proxies in self._held.values():
            if any(name in held for name in names):
                yield from proxies

    def _mtls(self, service: Service) -> str:
        modes = {client_mtls(self._view, service.key, port.name, False) for port in service.ports} - {None}
        return "MIXED" if len(modes) > 1 else "".join(mode.value for mode in modes if mode is not None)
