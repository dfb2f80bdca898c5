"""The VirtualServices that have a host."""

from __future__ import annotations

from mesh_pilot.model.hosts import host_covers
from mesh_pilot.ops.plane.state import PlaneState


class RoutedHosts:
    """The VirtualServices by the hosts that they have."""

    def __init__(self, state: PlaneState) -> None:
        self._exact: dict[str, dict[str, None]] = {}
        self._wildcards: dict[str, dict[str, None]] = {}
        for _, group in state.world.virtual_services.items():
            for meta in group:
                for host in meta.hosts:
                    place = self._wildcards if host.startswith("*") else self._exact
                    place.setdefault(host, {})[str(meta.key)] = None

    def by(self, host: str) -> list[str]:
        """The VirtualServices that have a host, or a wildcard that covers it."""
        found = dict(self._exact.get(host, {}))
        for wildcard, own in self._wildcards.items():
            if host_covers(wildcard, host):
                found |= own
        return [*found]
