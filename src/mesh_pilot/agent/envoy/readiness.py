"""True if an Envoy is ready: live, its workers started, and its first clusters and listeners accepted.

As Istio's agent judges it: an Envoy that calls itself live may have no configuration at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATISTICS = (
    r"^(listener_manager\.workers_started|(cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected))$"
)
"""The regular expression of the statistics that ``why_not_ready`` reads."""

_UPDATES = {"cds_config": "cluster_manager.cds", "lds_config": "listener_manager.lds"}


def awaited(bootstrap: Mapping[str, Any]) -> tuple[str, ...]:
    """The statistics prefixes of what the bootstrap has Envoy ask a control plane for."""
    dynamic = bootstrap.get("dynamic_resources") or {}
    return tuple(prefix for field, prefix in _UPDATES.items() if field in dynamic)


def why_not_ready(state: str, statistics: Mapping[str, int], prefixes: tuple[str, ...]) -> str:
    """Empty if Envoy is ready, else the reason."""
    for prefix in prefixes:
        if statistics.get(f"{prefix}.update_success"):
            continue
        kind = "clusters" if prefix.endswith("cds") else "listeners"
        if statistics.get(f"{prefix}.update_rejected"):
            return f"Envoy has rejected its first {kind}"
        return f"no {kind} from the control plane yet"
    if state != "LIVE":
        return f"Envoy is {state}"
    return "" if statistics.get("listener_manager.workers_started") else "Envoy's workers have not started"
