"""A service of the local Consul agent: what it says of the workload next to us.

The last answer is kept, so that a machine that starts while its Consul agent is away knows who it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mesh_pilot.agent.registration.local_agent import ConsulAway, LocalConsulAgent, RegistrationError
from mesh_pilot.agent.settings import AgentError, ConsulAgentSettings
from mesh_pilot.cli.proxy.istio_names import Remark

FILE = "consul-service.json"
_LOCALITY = ("region", "zone", "subzone")
_NO_LABELS = ("namespace", *_LOCALITY, "network", "cluster_id", "service_account", "tls_mode", "external", "protocol")
_NO_LABEL_PREFIXES = ("service_port", "port_", "protocol_", "gateway_port", "consul-")
"""Metadata that mean something else than a label (docs/consul.md)."""


def from_consul(
    settings: ConsulAgentSettings, state: Path, remarks: list[Remark], *, keep: bool = True
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Settings of the proxy by name, and its labels. ``keep`` the answer in ``state``. Raises AgentError."""
    return described(_service(settings, state / FILE, remarks, keep=keep))


def described(service: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Settings by name, and labels, of a service in the form of Consul's agent API."""
    meta = {str(key): str(value) for key, value in (service.get("Meta") or {}).items()}
    locality = "/".join(meta.get(part, "") for part in _LOCALITY).rstrip("/")
    labels = {
        key: value
        for key, value in meta.items()
        if key not in _NO_LABELS and not key.startswith(_NO_LABEL_PREFIXES) and value
    }
    settings = {
        "name": service.get("ID") or None,
        "namespace": meta.get("namespace") or None,
        "service_account": meta.get("service_account", "").rpartition("/")[2] or None,  # it may be a SPIFFE id
        "ip": service.get("Address") or None,
        "locality": locality or service.get("Datacenter") or None,
    }
    return settings, {"app": str(service.get("Service", "")), **labels}


def _service(settings: ConsulAgentSettings, kept: Path, remarks: list[Remark], *, keep: bool) -> Mapping[str, Any]:
    import trio

    try:
        service: Mapping[str, Any] = trio.run(LocalConsulAgent(settings).service, settings.service_id)
    except ConsulAway as error:
        if (last := _last(kept, settings.service_id)) is None:
            raise AgentError(f"--consul-service {settings.service_id}: {error}") from None
        remarks.append(Remark("consul agent is away", {"reason": str(error), "effect": "what it said last counts"}))
        return last
    except RegistrationError as error:
        raise AgentError(f"--consul-service {settings.service_id}: {error}") from None
    if keep:
        _keep(kept, service)
    return service


def _last(kept: Path, service_id: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) and found.get("ID") == service_id else None


def _keep(kept: Path, service: Mapping[str, Any]) -> None:
    """Keep an answer; a full or read-only disk does not prevent the start."""
    from contextlib import suppress

    from mesh_pilot.identity.trust.private_files import replace

    with suppress(OSError):
        replace(kept, json.dumps(service).encode())
