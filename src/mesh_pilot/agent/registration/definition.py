"""The definition of a service as the agent registers it: what the user wrote, with what the mesh needs to know.

Pure. Source: Consul, "Agent HTTP API: Register Service". The metadata are those that ``docs/consul.md`` lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.settings import AgentError
from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.model.proxy import Interception, NodeType

TTL_SECONDS = 10.0
"""Silence after which Consul takes us for dead."""

CHECK_NAME = "mesh-pilot agent"

COMPARED_KEYS = ("Name", "ID", "Port", "Address", "Meta", "Tags")
"""Fields that ``differs`` looks at."""

_KEYS = {
    re.sub("_", "", key).lower(): key
    for key in (
        "Name", "ID", "Port", "Address", "SocketPath", "Meta", "Tags", "Check", "Checks", "Weights", "TaggedAddresses",
        "EnableTagOverride", "Namespace", "Partition", "Locality", "Ports",
    )
}  # fmt: skip
_META_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MOST_META = 64
_MOST_META_VALUE = 512
_MEANINGS = re.compile(
    r"protocol(_.+)?|service_port(_.+)?|port_.+|namespace|region|zone|subzone|network|cluster_id|service_account|tls_mode"
    r"|external|consul-.+"
)
"""Keys that mean something to the control plane or to Consul: labels of these names are not put there."""


def check_id(service_id: str) -> str:
    """The id of our check of a service."""
    return f"mesh-pilot:{service_id}"


def ttl_check(service_id: str, status: str) -> dict[str, Any]:
    """Our check in the form of a service's ``Checks``; it is in ``status`` from the start."""
    return {
        "CheckID": check_id(service_id),
        "Name": CHECK_NAME,
        "Notes": "set by the agent next to the service: Envoy is ready, probes succeed, and it is not draining",
        "TTL": f"{TTL_SECONDS:g}s",
        "Status": status,
    }


def service_definition(written: Mapping[str, Any], node: EnvoyNode) -> dict[str, Any]:
    """The whole definition without our check: what is ``written``, then the facts of the node.

    ``written`` may have the keys of Consul's API or those of its configuration files. Raises AgentError.
    """
    if list(written) == ["service"] and isinstance(written["service"], Mapping):
        written = written["service"]
    found: dict[str, Any] = {}
    for key, value in written.items():
        name = _KEYS.get(str(key).replace("_", "").lower())
        if name is None:
            hint = did_you_mean(str(key), _KEYS.values()) or f"; known are {', '.join(sorted(_KEYS.values()))}"
            raise AgentError(f"the definition of the Consul service has no field {key!r}{hint}")
        found[name] = value
    if not isinstance(found.get("Name"), str) or not found["Name"]:
        raise AgentError("the definition of the Consul service has no Name")
    port = found.get("Port", 0)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise AgentError(f"the Port of the Consul service {found['Name']} is {port!r}, no port of TCP")
    tags, meta = found.get("Tags") or [], found.get("Meta") or {}
    if not isinstance(tags, list) or not isinstance(meta, Mapping):
        raise AgentError(f"Tags of the Consul service {found['Name']} must be a list, and Meta an object")
    found["ID"] = found.get("ID") or found["Name"]
    found["Address"] = found.get("Address") or node.ip  # a sidecar takes the services at its own address
    found["Meta"], found["Tags"] = _facts(meta, tags, node)
    checks = found.pop("Checks", None) or []
    if found.get("Check"):
        checks = [*checks, found.pop("Check")]
    found.pop("Check", None)
    found["Checks"] = checks
    return found


def _facts(meta: Mapping[str, Any], tags: list[Any], node: EnvoyNode) -> tuple[dict[str, str], list[str]]:
    """Metadata and tags, with the node's facts where the user gave none."""
    found = {str(key): value if isinstance(value, str) else str(value) for key, value in meta.items()}
    facts = {
        "namespace": node.namespace,
        "service_account": node.metadata.get("SERVICE_ACCOUNT"),
        "network": node.metadata.get("NETWORK"),
        "region": node.locality.region,
        "zone": node.locality.zone,
        "subzone": node.locality.subzone,
        # Where nothing is redirected, callers reach the application without Envoy.
        "tls_mode": "istio" if node.type is NodeType.SIDECAR and node.interception is not Interception.NONE else "",
    }
    for key, fact in facts.items():
        if isinstance(fact, str) and fact:
            found.setdefault(key, fact)
    labelled = [str(tag) for tag in tags]
    for key, value in sorted(node.labels.items()):
        if key in found or _MEANINGS.fullmatch(key) or any(tag.startswith((f"{key}=", f"{key}|")) for tag in labelled):
            continue
        if _META_KEY.fullmatch(key) and len(value) <= _MOST_META_VALUE and len(found) < _MOST_META:
            found[key] = value
        else:
            labelled.append(f"{key}={value}")
    return found, labelled


def differs(registered: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The name of a field in which the service as Consul has it differs from the definition; empty if none does."""
    if registered.get("Service") != wanted["Name"]:
        return "Name"
    for key in ("Port", "Address", "Meta", "Tags"):
        if (registered.get(key) or None) != (wanted.get(key) or None):
            return key
    return ""
