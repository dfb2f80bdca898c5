"""The ends of calls: who calls, and what is called, by the names that statistics have."""

from __future__ import annotations

import attrs

from mesh_pilot.mesh.names.resources import (
    BLACK_HOLE,
    INBOUND_PASSTHROUGH,
    PASSTHROUGH,
    REQUESTED_HOST,
    Direction,
    parse_cluster,
)
from mesh_pilot.traffic.table import ReportingProxy
from mesh_pilot.world import View


@attrs.frozen(order=True)
class TrafficEnd:
    """A caller, or a destination of calls."""

    kind: str
    """A caller's: ``workload``, ``gateway``, ``proxy`` or ``namespace``. A destination's: ``service``; ``passthrough``:
    a host that no service has; ``black_hole``: one that is refused; ``inbound`` and ``inbound_passthrough``: a proxy's
    own application, at a port of a service or another one; ``namespace``; ``cluster``: one of another name."""
    name: str
    """A workload's or proxy's name, a service's host, or a cluster's name."""
    namespace: str
    """Empty for what has none."""
    port: int | None = None
    subset: str = ""


class TrafficEnds:
    """The ends of edges, by names that statistics have. State: those that were resolved."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._called: dict[tuple[str, str], TrafficEnd] = {}

    def called(self, proxy: ReportingProxy, name: str) -> TrafficEnd:
        """The destination that a row of a cluster of a proxy is about."""
        key = proxy.workload.namespace, name
        found = self._called.get(key)
        if found is None:
            found = self._called[key] = self._resolved(*key)
        return found

    def _resolved(self, namespace: str, name: str) -> TrafficEnd:
        cluster = parse_cluster(name)
        if cluster is None:
            return TrafficEnd(_KINDS.get(name, "cluster"), name, "")
        if cluster.direction is Direction.INBOUND:
            return TrafficEnd("inbound", name, "", cluster.port)
        own = [each.namespace for each in self._view.services_named(cluster.host)]
        found = namespace if namespace in own else next(iter(own), "")
        return TrafficEnd("service", cluster.host, found, cluster.port, cluster.subset)


_KINDS = {
    PASSTHROUGH: "passthrough",
    REQUESTED_HOST: "passthrough",
    BLACK_HOLE: "black_hole",
    INBOUND_PASSTHROUGH: "inbound_passthrough",
}

INBOUND_KINDS = ("inbound", "inbound_passthrough")
