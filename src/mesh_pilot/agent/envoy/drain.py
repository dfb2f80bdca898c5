"""How many connections an Envoy still has, as Istio's agent counts them (``EXIT_ON_ZERO_ACTIVE_CONNECTIONS``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def active_connections(statistics: Mapping[str, int], own_ports: Collection[int]) -> int:
    """The sum over all listeners but the admin's and those on ``own_ports`` (readiness, Prometheus).

    ``statistics``: those whose names end in ``downstream_cx_active``.
    """
    ours = tuple(f"_{port}.downstream_cx_active" for port in own_ports)
    return sum(
        value
        for name, value in statistics.items()
        if name.startswith("listener.")
        and ".worker_" not in name  # counted in the listener's sum, too
        and not name.startswith("listener.admin.")
        and not name.endswith(ours)
    )
