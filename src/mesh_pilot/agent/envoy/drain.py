"""Drains as Istio's agent has them: listeners told to let connections end, and active connections counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog
import trio

from mesh_pilot.agent.envoy.admin import AdminError
from mesh_pilot.agent.envoy.child import EnvoyChild

log = structlog.get_logger(scope="agent")

_CHECK_SECONDS = 1.0
"""Between two looks at the active connections."""


async def drain_listeners(child: EnvoyChild, query: str) -> None:
    """Ask Envoy to let connections end. ``query``: that of its ``/drain_listeners``."""
    try:
        await (await child.admin()).post(f"/drain_listeners?{query}")
    except AdminError as error:
        log.warning("envoy's listeners cannot be drained", reason=str(error))


async def until_no_connections(child: EnvoyChild, own_ports: Collection[int]) -> None:
    """Wait until only connections on ``own_ports`` are left, or Envoy does not tell."""
    admin, before = await child.admin(), -1
    while True:
        try:
            count = active_connections(await admin.stats("downstream_cx_active$"), own_ports)
        except AdminError as error:
            log.warning("drained without knowing how many connections are active", reason=str(error))
            return
        if not count:
            return
        if count != before:
            log.info("waiting for active connections", count=count)
        before = count
        await trio.sleep(_CHECK_SECONDS)


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
