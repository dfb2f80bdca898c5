"""The parts of a proxy that configuration depends on: the keys of translators.

- ``OutboundScope``: everything that outbound configuration depends on. Most proxies of a namespace have the same one.
- ``ProxyLocality``: where the proxy runs. Endpoints and their priorities depend on it.
- ``Workload``: the proxy's own addresses and labels, for inbound configuration.

A translator takes the parts it needs, never the proxy: proxies that agree in them share its results.
"""

from __future__ import annotations

import attrs

from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.registration import RegistrationClaim
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import (
    LOAD_REPORTS,
    RBAC_RULE_STATS,
    SELF_DISCOVERY,
    Interception,
    NodeType,
)
from mesh_pilot.model.service import Locality, Service
from mesh_pilot.world.auto_addresses import to_ipv6

AGENT_SECRETS = "AGENT_SECRETS"
"""Node metadata of an Envoy whose agent serves the mesh's certificate and roots, as cluster ``sds-grpc``."""
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Label of a workload: the same."""

OWN_RESOLVER = "OWN_DNS_RESOLVER"
"""Node metadata: true if the proxy's bootstrap says how names are resolved."""
SYSTEM_ROOTS = "SYSTEM_ROOTS"
"""Node metadata: the file with the CA certificates of the proxy's operating system; empty without one."""
DEFAULT_SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""The same for nodes that do not say it: Debian's and Alpine's path, and that of Envoy's and Istio's images."""

SCOPE_METADATA = (
    "DNS_AUTO_ALLOCATE",
    "DNS_CAPTURE",
    "HTTP10",
    "HTTP_PROXY_PORT",
    "IDLE_TIMEOUT",
    "INBOUND_LISTENER_EXACT_BALANCE",
    LOAD_REPORTS,
    "OUTBOUND_LISTENER_EXACT_BALANCE",
    METADATA,
    OWN_RESOLVER,
    RBAC_RULE_STATS,
    "ROUTER_MODE",
    SELF_DISCOVERY,
    "TLS_CLIENT_CERT_CHAIN",
    "TLS_CLIENT_KEY",
    "TLS_CLIENT_ROOT_CERT",
    "TLS_SERVER_CERT_CHAIN",
    "TLS_SERVER_KEY",
    "TLS_SERVER_ROOT_CERT",
    "UNPRIVILEGED_POD",
)
"""Node metadata that translators may read with ``OutboundScope.meta``."""


@attrs.frozen(cache_hash=True)
class OutboundScope:
    """Everything that a proxy's outbound (or gateway) configuration depends on, except the World."""

    type: NodeType
    namespace: str
    dns_domain: str
    """The proxy's DNS search domain, ``shop.svc.cluster.local``."""
    sidecar: ConfigKey | None = None
    """The Sidecar that applies."""
    labels: Labels = frozenset()
    """Only the labels by which some config selects (``view.selected_labels()``)."""
    gateways: tuple[ConfigKey, ...] = ()
    """The Gateways that select a router, oldest first."""
    interception: Interception = Interception.REDIRECT
    ipv4: bool = True
    ipv6: bool = False
    metadata: frozenset[tuple[str, str]] = frozenset()
    grpc: bool = False
    """A proxyless gRPC client."""
    certified: bool = True
    """True if this server gives it a mesh certificate. Other proxies use plaintext where that is allowed: they would
    wait for a certificate forever."""
    split: bool = False
    """True if it gets virtual hosts as separate resources (VHDS)."""
    on_demand: bool = False
    """True if it gets clusters that only routes name when a request needs them (ODCDS)."""

    cluster_id: str = ""
    """The proxy's cluster, if some service has other addresses in another one."""
    system_roots_by_agent: bool = False
    """True if its agent serves the CA certificates of the operating system: Istio's agents do."""

    def addresses(self, service: Service) -> tuple[str, ...]:
        """The addresses by which a service is known in the proxy's cluster; none if it has none."""
        return service.addresses_in(self.cluster_id) if self.cluster_id else service.addresses

    def meta(self, key: str) -> str:
        """A value of SCOPE_METADATA as text; empty if absent."""
        for name, value in self.metadata:
            if name == key:
                return value
        return ""

    def is_on(self, key: str) -> bool:
        """True if a boolean of SCOPE_METADATA is true."""
        return self.meta(key).lower() == "true"

    def auto_addresses(self, service: Service) -> tuple[str, ...]:
        """The addresses, one of each family, to which the proxy's DNS resolves a service that has none."""
        if service.addresses or not service.auto_address or not self._resolves_names:
            return ()
        return self._of_families(service.auto_address, to_ipv6(service.auto_address))

    @property
    def has_local_cluster(self) -> bool:
        """True if its Envoy can route by zone."""
        return self.is_on(SELF_DISCOVERY) and not self.grpc

    @property
    def agent_secrets(self) -> bool:
        """True if it gets the mesh's certificate and roots from its agent, not from this server."""
        return self.meta(AGENT_SECRETS) == "true"

    @property
    def has_certificate(self) -> bool:
        """True if it has a certificate of the mesh from either."""
        return self.certified or self.agent_secrets

    @property
    def _resolves_names(self) -> bool:
        captures = self.interception is not Interception.NONE  # else nothing would take a connection there
        return captures and self.is_on("DNS_CAPTURE") and self.is_on("DNS_AUTO_ALLOCATE")

    @property
    def wildcards(self) -> tuple[str, ...]:
        """The wildcard addresses to bind, one of each family."""
        return self._of_families("0.0.0.0", "::")

    @property
    def loopbacks(self) -> tuple[str, ...]:
        return self._of_families("127.0.0.1", "::1")

    @property
    def wildcard(self) -> str:
        """The first of ``wildcards``: listeners are named by it."""
        return self.wildcards[0]

    @property
    def loopback(self) -> str:
        return self.loopbacks[0]

    def also_bound(self, bind: str) -> tuple[str, ...]:
        """The further addresses of a listener at an address that follows from the proxy."""
        return next((each[1:] for each in (self.wildcards, self.loopbacks) if each[0] == bind), ())

    def _of_families(self, ipv4: str, ipv6: str) -> tuple[str, ...]:
        """The values for the families of the proxy, IPv4 first."""
        return (*((ipv4,) if self.ipv4 else ()), *((ipv6,) if self.ipv6 or not self.ipv4 else ()))


@attrs.frozen(cache_hash=True)
class ProxyLocality:
    """The locality of a proxy, and other properties that its endpoints' priorities depend on."""

    locality: Locality
    network: str
    cluster_id: str
    labels: Labels
    """Only the labels that some ``failoverPriority`` may compare with endpoints'."""
    network_view: frozenset[str] = frozenset()
    """The networks whose endpoints it wants, besides those of no network; empty: all."""
    ipv4: bool = True
    ipv6: bool = True
    """The families of its addresses."""
    node: str = ""
    """The machine that it runs on, if some service depends on it."""


@attrs.frozen(cache_hash=True)
class Workload:
    """The proxy's own workload, for inbound configuration."""

    scope: OutboundScope
    name: str
    ip_addresses: tuple[str, ...]
    labels: Labels
    service_account: str
    claim: RegistrationClaim
    """Identifies the workload's endpoints."""
    spans: SpanSource = NO_SOURCE
    """The workload's properties in its spans."""
    identity: str = ""
    """See ``Proxy.identity``."""
    system_roots: str = DEFAULT_SYSTEM_ROOTS
    """See ``SYSTEM_ROOTS``."""
