"""The settings of auto-registration."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RegistrationSettings:
    """Times are in seconds."""

    grace_seconds: float = 10.0
    """How long the entry of a workload stays after its last stream has ended."""
    any_address: bool = False
    """Believe the address that a workload claims, though its connection comes from another one (NAT)."""
    key: str = "mesh-pilot/auto-registration"
    """The prefix in Consul's KV store where replicas share entries, if they elect a leader there."""
