"""Proxies: who connects to us, from the node it presents (Envoy's ``core.v3.Node``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from mesh_pilot.base.reading import as_string_map
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import NOWHERE, Locality

VIRTUAL_HOSTS = "VIRTUAL_HOSTS"
"""Node metadata: ``split`` for virtual hosts as separate resources (VHDS), ``whole`` for complete route tables."""

CLUSTERS = "CLUSTERS"
"""Node metadata: ``on-demand`` for clusters of HTTP services when a request first needs them, ``all`` at once."""

SELF_DISCOVERY = "ENABLE_SELF_DISCOVERY"
"""Node metadata: ``true`` if `LOCAL_CLUSTER` is Envoy's local cluster: it knows in which zones the instances like
itself are."""

LOCAL_CLUSTER = "local_cluster"
"""Name of that cluster and of its endpoints, as in Istio's bootstrap."""

BOOTSTRAP_PATCHES = "BOOTSTRAP_PATCHES"
"""Node metadata: the marks of the EnvoyFilter patches that an agent has merged into the bootstrap, with commas."""

BOOTSTRAP_PATCH = 1000
"""A field of the ProxyConfig for agents that mesh-pilot adds to Istio's: a patch of the bootstrap. Its fields: where it
stands (1), its mark (2), the Bootstrap to merge as JSON (3)."""

LOAD_REPORTS = "LOAD_REPORTS"
"""Node metadata of proxyless gRPC: ``true`` if its clusters are to name the server of load reports (LRS)."""

RBAC_RULE_STATS = "RBAC_RULE_STATS"
"""Node metadata: ``true`` if Envoy is to count what each rule of a policy admits and denies."""

AGENT = "AGENT"
"""Node metadata: the version of an agent, on the stream that it has for itself next to that of its Envoy."""


class NodeType(StrEnum):
    SIDECAR = "sidecar"
    ROUTER = "router"


class Interception(StrEnum):
    """How traffic reaches a sidecar (metadata ``INTERCEPTION_MODE``)."""

    REDIRECT = "REDIRECT"
    TPROXY = "TPROXY"
    NONE = "NONE"


class NodeError(ValueError):
    """A node that can't be served, with the reason for the proxy's operator."""


@attrs.frozen(eq=False)
class Proxy:
    """A connected proxy. Identity is the object: two streams of one proxy are two of these."""

    id: str
    """The complete node id: ``sidecar~10.1.1.1~reviews-v1.default~default.svc.cluster.local``."""
    type: NodeType
    ip_addresses: tuple[str, ...]
    name: str
    """Third part of the id: ``reviews-v1.default``."""
    namespace: str
    """From metadata NAMESPACE, else the id."""
    dns_domain: str
    """``default.svc.cluster.local``."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """The node's metadata as plain Python (dict, list, str, float, bool, None)."""
    locality: Locality = NOWHERE
    cluster: str = ""
    version: str = ""
    """Envoy's version, such as ``1.40.0``; empty if unknown."""
    identity: str = ""
    """The SPIFFE id that its connection vouches for; empty where nothing does, and then it gets no private key."""
    peer: str = ""
    """The address that its connection comes from, without a port; empty if unknown."""
    build: str = ""
    """The program that it is, as exactly as it says: name, version, commit, kind of build, TLS library."""
    domains: tuple[str, ...] = ()
    """The domains it belongs to, the narrowest first: groups of clients that the same items are withheld from. Those of
    the first one that has any count; it has those of the wider ones, too."""
    incremental: bool = False
    """True if it receives all types over one Delta stream, so that its virtual hosts can be separate resources."""

    @property
    def interception(self) -> Interception:
        value = self.metadata.get("INTERCEPTION_MODE", "")
        return Interception(value) if value in set(Interception) else Interception.REDIRECT

    @property
    def is_grpc(self) -> bool:
        """A proxyless gRPC client (metadata ``GENERATOR: grpc``)."""
        return self.metadata.get("GENERATOR") == "grpc"

    @property
    def cluster_id(self) -> str:
        """The cluster that it says it is of (metadata ``CLUSTER_ID``); empty: it does not say."""
        return self.text("CLUSTER_ID")

    @property
    def agent(self) -> str:
        """The version of the agent whose own stream this is; empty for all others. It is not a second proxy."""
        return self.text(AGENT)

    def text(self, key: str, default: str = "") -> str:
        """A string of the metadata, or the default where it is absent or not a string."""
        value = self.metadata.get(key, default)
        return value if isinstance(value, str) else default


def parse_proxy(
    node_id: str,
    metadata: Mapping[str, Any],
    *,
    locality: Locality = NOWHERE,
    cluster: str = "",
    version: str = "",
    build: str = "",
) -> Proxy:
    """The proxy described by a node.

    Raises NodeError with the mistake and an example of a valid id.
    """
    parts = node_id.split("~")
    example = (
        "expected type~ip~name.namespace~dns-domain, such as sidecar~10.1.1.1~web-1.default~default.svc.cluster.local"
    )
    if len(parts) != 4:
        raise NodeError(f"malformed node id {node_id!r}: {example}")
    kind, ip, name, domain = parts
    if kind not in set(NodeType):
        raise NodeError(f"node id {node_id!r}: unknown node type {kind!r} (sidecar or router); {example}")
    addresses = [a for a in str(metadata.get("INSTANCE_IPS") or "").split(",") if a]
    if ip and ip not in addresses:
        addresses.insert(0, ip)
    good = tuple(dict.fromkeys(a for a in addresses if is_ip(a)))
    if not good:
        raise NodeError(f"node id {node_id!r}: no valid IP address in the id or in metadata INSTANCE_IPS; {example}")
    namespace = metadata.get("NAMESPACE")
    if not isinstance(namespace, str) or not namespace:
        namespace = name.rpartition(".")[2] if "." in name else domain.split(".")[0]
    labels = metadata.get("LABELS")
    return Proxy(
        id=node_id,
        type=NodeType(kind),
        ip_addresses=good,
        name=name,
        namespace=namespace,
        dns_domain=domain,
        labels=as_string_map(labels),
        metadata=metadata,
        locality=locality,
        cluster=cluster,
        version=version,
        build=build,
    )
