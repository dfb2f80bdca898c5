"""Puts the parts of the agent together, in one tree of nurseries.

Order of the start: certificate from disk or by the credential; connection; name table and proxy settings (from disk if
no control plane answers within ``PATIENCE_SECONDS``); DNS, status; Envoy; probes and registration once it is ready.
At SIGTERM the other way round: draining in Consul, Envoy drained, deregistered.
"""

from __future__ import annotations

from mesh_pilot.agent.settings import AgentSettings

PATIENCE_SECONDS = 5.0


async def run_agent(settings: AgentSettings) -> None:
    """Run until cancelled. Raises AgentError."""
    raise NotImplementedError
