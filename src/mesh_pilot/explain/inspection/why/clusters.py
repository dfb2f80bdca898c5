"""Clusters and endpoints in words: where requests go, with which health, priority and TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.matchers import Message
from mesh_pilot.explain.inspection.why.subsets import in_subset

OVERPROVISIONING = 140
"""Envoy's default factor in percent: a priority serves all requests while 72 % of its endpoints are healthy."""

PLAINTEXT = "plaintext"
MESH_MTLS = "mTLS of the mesh"

USABLE = ("HEALTHY", "UNKNOWN", "DEGRADED")


@attrs.frozen
class EndpointFacts:
    """One endpoint of a cluster."""

    address: str
    health: str
    priority: int
    locality: str
    weight: float
    tls: str
    """The transport for it: ``mTLS of the mesh``, ``mTLS``, ``TLS``, ``plaintext``."""
    sni: str = ""
    """The server name that its TLS asks for."""
    share: float = 0.0
    """The percentage of the cluster's requests, as far as health, priority and weights decide."""

    @property
    def is_usable(self) -> bool:
        return self.health in USABLE


def cluster_parts(name: str) -> tuple[str, str, str] | None:
    """(host, port, subset) of a cluster with a name of Istio's form; None for another."""
    parts = name.split("|")
    return (parts[3], parts[1].removesuffix("/udp"), parts[2]) if len(parts) == 4 else None


def endpoint_facts(cluster: Message, assignment: Message | None, wanted: Mapping[str, Any]) -> list[EndpointFacts]:
    """The endpoints of a cluster; ``wanted`` is what a route's subset match asks of their metadata (``envoy.lb``)."""
    given = assignment if assignment is not None else cluster.get("load_assignment", {})
    hosts = [each for group in given.get("endpoints", ()) for each in group.get("lb_endpoints", ())]
    subset = iter(in_subset(cluster, [_metadata(each).get("envoy.lb", {}) for each in hosts], wanted))
    factor = int(given.get("policy", {}).get("overprovisioning_factor", OVERPROVISIONING))
    by_locality = "locality_weighted_lb_config" in cluster.get("common_lb_config", {})
    found: list[EndpointFacts] = []
    for group in given.get("endpoints", ()):
        place = group.get("locality", {})
        locality = "/".join(str(place.get(part, "")) for part in ("region", "zone", "sub_zone")).rstrip("/")
        members: list[EndpointFacts] = []
        for each in group.get("lb_endpoints", ()):
            if not next(subset):
                continue
            members.append(
                EndpointFacts(
                    address=_address(each.get("endpoint", {}).get("address", {})),
                    health=str(each.get("health_status", "HEALTHY")).replace("UNKNOWN", "HEALTHY"),
                    priority=int(group.get("priority", 0)),
                    locality=locality,
                    weight=int(each.get("load_balancing_weight", 1)),
                    tls=_socket_words(socket := _socket_for(cluster, _metadata(each))),
                    sni=_sni(socket),
                )
            )
        found += _weighed(members, int(group.get("load_balancing_weight", 0)), factor) if by_locality else members
    return list(_with_shares(found, factor))


def _metadata(endpoint: Message) -> Mapping[str, Any]:
    found: Mapping[str, Any] = endpoint.get("metadata", {}).get("filter_metadata", {})
    return found


def _weighed(members: Sequence[EndpointFacts], weight: int, factor: int) -> Iterator[EndpointFacts]:
    """The endpoints of a locality, whose weights are parts of the locality's ("Locality weighted load balancing")."""
    usable = [member for member in members if member.is_usable]
    total = sum(member.weight for member in usable)
    effective = weight * min(1.0, factor / 100 * len(usable) / len(members)) if members else 0.0
    for member in members:
        yield attrs.evolve(member, weight=effective * member.weight / total if total else 0.0)


def _with_shares(endpoints: Sequence[EndpointFacts], factor: int) -> Iterator[EndpointFacts]:
    """Endpoints with the share of each: by priorities as Envoy's ("Priority levels"), by weight in a priority."""
    left, loads = 100.0, {}
    for priority in sorted({endpoint.priority for endpoint in endpoints}):
        level = [endpoint for endpoint in endpoints if endpoint.priority == priority]
        healthy = 100 * sum(endpoint.is_usable for endpoint in level) / len(level)
        loads[priority] = min(left, min(100.0, healthy * factor / 100))
        left -= loads[priority]
    total = sum(loads.values())
    for endpoint in endpoints:
        level = [other for other in endpoints if other.priority == endpoint.priority and other.is_usable]
        weights = sum(other.weight for other in level)
        share = loads[endpoint.priority] / total * 100 * endpoint.weight / weights if total and weights else 0.0
        yield attrs.evolve(endpoint, share=share if endpoint.is_usable else 0.0)


def _address(address: Mapping[str, Any]) -> str:
    if "socket_address" in address:
        socket = address["socket_address"]
        host = str(socket.get("address", ""))
        return f"{f'[{host}]' if ':' in host else host}:{socket.get('port_value', 0)}"
    if "pipe" in address:
        return str(address["pipe"].get("path", ""))
    return str(address.get("envoy_internal_address", {}).get("server_listener_name", "")) or "?"


def _socket_for(cluster: Message, metadata: Mapping[str, Any]) -> Message:
    """The transport socket to an endpoint with this metadata."""
    wanted = metadata.get("envoy.transport_socket_match", {})
    for match in cluster.get("transport_socket_matches", ()):
        if all(wanted.get(key) == value for key, value in match.get("match", {}).items()):
            found: Message = match.get("transport_socket", {})
            return found
    own: Message = cluster.get("transport_socket", {})
    return own


def _sni(socket: Message) -> str:
    config = socket.get("typed_config", {})
    return _sni(config["transport_socket"]) if "transport_socket" in config else str(config.get("sni", ""))


def _socket_words(socket: Mapping[str, Any]) -> str:
    config = socket.get("typed_config", {})
    if "transport_socket" in config:
        return _socket_words(config["transport_socket"])
    if "UpstreamTlsContext" not in str(config.get("@type", "")):
        return PLAINTEXT
    common = config.get("common_tls_context", {})
    if "istio" in str(common.get("alpn_protocols", "")) or any(
        secret.get("name") == "default" for secret in common.get("tls_certificate_sds_secret_configs", ())
    ):
        return MESH_MTLS
    own = common.get("tls_certificates") or common.get("tls_certificate_sds_secret_configs")
    return "mTLS" if own else "TLS"


def cluster_words(cluster: Message) -> list[str]:
    """The settings of a cluster that people ask about, a few words each."""
    found = [f"{_KINDS.get(str(cluster.get('type', 'STATIC')), str(cluster.get('type', 'STATIC')))}"]
    if "load_balancing_policy" in cluster:
        found.append("client-side weighted round robin")
    elif (policy := cluster.get("lb_policy", "ROUND_ROBIN")) not in ("CLUSTER_PROVIDED",):
        found.append(str(policy).lower().replace("_", " "))
    if "lb_subset_config" in cluster:
        found.append("subsets by metadata")
    if "outlier_detection" in cluster:
        found.append("outlier detection")
    if limits := _limits(cluster):
        found.append(limits)
    if str(cluster.get("connect_timeout", "")) not in ("", "10s"):
        found.append(f"connects within {cluster['connect_timeout']}")
    return found


_KINDS = {
    "EDS": "endpoints from the control plane",
    "STRICT_DNS": "endpoints by DNS",
    "LOGICAL_DNS": "endpoints by DNS, one at a time",
    "ORIGINAL_DST": "to the address that the client chose",
    "STATIC": "fixed endpoints",
}


def _limits(cluster: Message) -> str:
    unlimited = 4294967295
    thresholds = cluster.get("circuit_breakers", {}).get("thresholds", ())
    named = {
        str(name).removeprefix("max_").replace("_", " "): int(value)
        for threshold in thresholds
        for name, value in threshold.items()
        if str(name).startswith("max_") and isinstance(value, int) and value != unlimited
    }
    return f"limits: {', '.join(f'{value} {name}' for name, value in named.items())}" if named else ""
