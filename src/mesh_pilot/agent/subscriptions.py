"""The agent's own xDS stream: what it asks the control plane for itself, and what it reports.

It is a stream beside Envoy's, on the same connection, with the same node and metadata ``AGENT`` (the agent's version).
"""

from __future__ import annotations

import attrs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.relay.planes import Planes


@attrs.frozen
class NameRow:
    """The addresses of a host name of the mesh. Source: Istio's ``nds.proto``."""

    addresses: tuple[str, ...]
    registry: str = ""
    short_name: str = ""
    namespace: str = ""


@attrs.frozen
class ApplicationHealth:
    """The state of the application, as probes see it."""

    is_healthy: bool
    reason: str = ""


class Subscriptions:
    """Keeps ``name_table``, ``proxy_config`` and ``trust_bundle`` current; the last ones survive a restart on disk."""

    def __init__(self, node: EnvoyNode, planes: Planes, *, names: bool) -> None:
        """``names``: subscribe to the name table."""
        self.name_table: Observable[dict[str, NameRow] | None] = Observable(None)
        self.proxy_config: Observable[bytes | None] = Observable(None)
        """``istio.mesh.v1alpha1.ProxyConfig`` of this proxy, encoded: ``defaultConfig`` and ProxyConfig objects merged.
        None before the first answer."""
        self.trust_bundle: Observable[tuple[str, ...]] = Observable(())

    async def run(self) -> None:
        """Subscribe, again on each new connection, for ever."""
        raise NotImplementedError

    async def report(self, health: ApplicationHealth) -> None:
        """Tell the control plane (``HealthInformation``); said again on each new connection."""
        raise NotImplementedError
