"""The parts of a proxy that configuration depends on: the keys of translators.

- ``OutboundScope``: everything that outbound configuration depends on. Most proxies of a namespace have the same one.
- ``ProxyLocality``: where the proxy runs. Endpoints and their priorities depend on it.
- ``Workload``: the proxy's own addresses and labels, for inbound configuration.

A translator takes the parts it needs, never the proxy: proxies that agree in them share its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.engine import Query, derived
from mesh_pilot.mesh.envoy_filter_selection import FilterRef, FilterSubject, filters_for
from mesh_pilot.mesh.networks import network_at
from mesh_pilot.mesh.proxy.agent_config import AgentFacts, AgentKey, agent_facts
from mesh_pilot.mesh.proxy.gateway_selection import gateways_for
from mesh_pilot.mesh.proxy.metric_source import WORKLOAD_NAME, metric_source, metrics_in, workload_names
from mesh_pilot.mesh.proxy.proxy_config import METADATA, own_settings
from mesh_pilot.mesh.proxy.registration import RegistrationClaim, registered, registration_claim
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource, semantic_service_name, span_needs, workload_tags
from mesh_pilot.mesh.proxy.workload_record import EffectiveWorkload, NodeWorkload, effective_workload
from mesh_pilot.mesh.selection import Labels, oldest_general, oldest_selecting, selects_services
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import (
    AGENT,
    CLUSTERS,
    SELF_DISCOVERY,
    VIRTUAL_HOSTS,
    Interception,
    NodeType,
    Proxy,
)
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Locality, Service
from mesh_pilot.world.auto_addresses import to_ipv6
from mesh_pilot.world.view import View

ResourceQuery = Query[Resource | None]
"""The query for one resource; None if it no longer exists."""

Plan = Mapping[str, ResourceQuery]
"""Queries by resource name. Cheap to make and to compare: a plan encodes nothing."""

PlanQuery = Query[Plan]

PlanShards = tuple[PlanQuery, ...]
"""A plan in shards with distinct names, so that a change costs only its own shard."""


@derived
def single_shard(_: View, plan: PlanQuery) -> PlanShards:
    """A plan that is not sharded."""
    return (plan,)


def merged_plan(view: View, plans: PlanShards) -> Plan:
    """The union of the shards of a plan."""
    merged: dict[str, ResourceQuery] = {}
    for plan in plans:
        merged.update(plan.get(view))
    return merged


AGENT_SECRETS = "AGENT_SECRETS"
"""Node metadata of an Envoy whose agent serves the mesh's certificate and roots, as cluster ``sds-grpc``."""
NETWORK_VIEW = "REQUESTED_NETWORK_VIEW"
"""Node metadata: the networks, with commas, whose endpoints a proxy wants. A gateway between networks wants its own."""

NODE_NAME = "NODE_NAME"
"""Node metadata: the machine that a proxy runs on."""

HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Label of a workload: the same."""

OWN_RESOLVER = "OWN_DNS_RESOLVER"
"""Node metadata: true if the proxy's bootstrap says how names are resolved."""
SYSTEM_ROOTS = "SYSTEM_ROOTS"
"""Node metadata: the file with the CA certificates of the proxy's operating system; empty without one."""
DEFAULT_SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""The same for nodes that do not say it: Debian's and Alpine's path, and that of Envoy's and Istio's images."""

ISTIO_AGENT = "PILOT_SAN"
"""Node metadata that Istio's agents send, and nobody else: they always serve them."""

SCOPE_METADATA = (
    "DNS_AUTO_ALLOCATE",
    "DNS_CAPTURE",
    "HTTP10",
    "HTTP_PROXY_PORT",
    "IDLE_TIMEOUT",
    "INBOUND_LISTENER_EXACT_BALANCE",
    "OUTBOUND_LISTENER_EXACT_BALANCE",
    METADATA,
    OWN_RESOLVER,
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

SPLITS_SINCE = (1, 40)
"""The first Istio proxy known to support VHDS over ADS; earlier ones may reject every route table."""


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
    """For a router: the Gateways that select it, oldest first."""
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


@attrs.frozen(cache_hash=True)
class ProxyFacts:
    """The properties of a proxy that translators may depend on: hashable, and fixed for the life of its stream."""

    type: NodeType
    namespace: str
    claim: RegistrationClaim
    dns_domain: str
    name: str
    ip_addresses: tuple[str, ...]
    said: NodeWorkload
    """Selectors and localities read ``effective_workload``, never this."""
    interception: Interception
    metadata: frozenset[tuple[str, str]]
    service_account: str
    grpc: bool
    identity: str
    """See ``Proxy.identity``."""
    version: str = ""
    """Node metadata ISTIO_VERSION; empty without it."""
    envoy_version: str = ""
    """See ``Proxy.version``."""
    split: bool = False
    """See ``OutboundScope.split``."""
    on_demand: bool = False
    """See ``OutboundScope.on_demand``."""
    texts: frozenset[tuple[str, str]] = frozenset()
    """All node metadata with text values: EnvoyFilters may match any."""
    service_cluster: str = ""
    """The node's ``cluster`` field, ``web.shop``."""
    semantic_service: str = ""
    """See ``semantic_service_name``."""

    @property
    def has_agent_secrets(self) -> bool:
        """See ``OutboundScope.agent_secrets``."""
        return (AGENT_SECRETS, "true") in self.metadata

    agent: AgentFacts | None = None
    """For an agent's own stream."""
    by_istio: bool = False
    """True if Istio's agent is beside it."""


@attrs.frozen(cache_hash=True)
class ProxyKeys:
    """The keys by which translators produce a proxy's configuration."""

    scope: OutboundScope
    locality: ProxyLocality
    workload: Workload
    filters: tuple[FilterRef, ...] = ()
    """The EnvoyFilters that apply to it, in order."""
    agent: AgentKey | None = None
    """For an agent's own stream, all that its settings depend on."""
    by_istio: bool = False
    """See ``ProxyFacts.by_istio``."""


def proxy_facts(proxy: Proxy, *, split: bool = False) -> ProxyFacts:
    """The facts of a connected proxy; ``split`` is the default for proxies whose metadata does not choose."""
    metadata = proxy.metadata
    return ProxyFacts(
        type=proxy.type,
        namespace=proxy.namespace,
        claim=registration_claim(proxy),
        dns_domain=proxy.dns_domain,
        name=proxy.name,
        ip_addresses=proxy.ip_addresses,
        said=NodeWorkload(frozenset(proxy.labels.items()), proxy.locality, proxy.text("NETWORK"), proxy.cluster_id),
        interception=proxy.interception,
        metadata=_scope_metadata(metadata) | ({(AGENT_SECRETS, "true")} if has_agent_secrets(proxy) else frozenset()),
        service_account=proxy.text("SERVICE_ACCOUNT"),
        grpc=proxy.is_grpc,
        identity=proxy.identity,
        version=proxy.text("ISTIO_VERSION"),
        envoy_version=proxy.version,
        split=_uses_vhds(proxy, split),
        on_demand=proxy.incremental and not proxy.is_grpc and proxy.text(CLUSTERS).lower() == "on-demand",
        texts=frozenset((k, v) for k, v in metadata.items() if isinstance(v, str) and k != AGENT),
        service_cluster=proxy.cluster,
        semantic_service=semantic_service_name(proxy),
        agent=agent_facts(proxy),
        by_istio=ISTIO_AGENT in metadata,
    )


def as_known(view: View, proxy: Proxy) -> Proxy:
    """The proxy with the labels by which objects select it, in the place of those that its node says."""
    facts = proxy_facts(proxy)
    known = effective_workload(view, facts.claim, facts.said, router=proxy.type is NodeType.ROUTER)
    return attrs.evolve(proxy, labels=dict(known.by_key))


def _uses_vhds(proxy: Proxy, default: bool) -> bool:
    """True if virtual hosts are separate resources. By default only for proxies whose version supports it."""
    if not proxy.incremental or proxy.is_grpc:
        return False
    requested = proxy.text(VIRTUAL_HOSTS)
    return requested.lower() == "split" if requested else default and _numbers(proxy.version) >= SPLITS_SINCE


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def has_agent_secrets(proxy: Proxy) -> bool:
    """See ``OutboundScope.agent_secrets``."""
    return not proxy.is_grpc and (has_our_agent(proxy) or ISTIO_AGENT in proxy.metadata)


def has_our_agent(proxy: Proxy) -> bool:
    """True if the proxy has an agent of ours, which follows the roots that it is sent."""
    return str(proxy.metadata.get(AGENT_SECRETS, "")).lower() == "true"


def _scope_metadata(metadata: Mapping[str, Any]) -> Labels:
    found = {key: str(metadata[key]) for key in SCOPE_METADATA if key in metadata}
    found[METADATA] = own_settings(metadata.get(METADATA))
    return frozenset((key, value) for key, value in found.items() if value or key != METADATA)


@derived
def proxy_keys(view: View, facts: ProxyFacts) -> ProxyKeys:
    """The keys of a proxy. They change when, for example, a Sidecar or Gateway starts or stops selecting it."""
    router = facts.type is NodeType.ROUTER
    selected = view.selected_labels()
    known = effective_workload(view, facts.claim, facts.said, router=router)
    labels = known.labels | known.record.services if selects_services(view) else known.labels
    # Proxyless gRPC supports too little of xDS for patches.
    subject = FilterSubject(facts.namespace, labels, facts.version, facts.texts)
    filters = () if facts.grpc else filters_for(view, subject)
    scope = OutboundScope(
        type=facts.type,
        namespace=facts.namespace,
        dns_domain=facts.dns_domain,
        sidecar=None if router else _sidecar_for(view, facts.namespace, labels),
        labels=frozenset((k, v) for k, v in labels if k in selected),
        gateways=gateways_for(view, facts.namespace, labels, facts.claim) if router else (),
        interception=facts.interception,
        ipv4=any(":" not in ip for ip in facts.ip_addresses),
        ipv6=any(":" in ip for ip in facts.ip_addresses),
        metadata=facts.metadata,
        grpc=facts.grpc,
        certified=bool(facts.identity),
        split=facts.split,
        # EnvoyFilters may name any cluster: the proxy needs all of them.
        on_demand=facts.on_demand and not router and not filters,
        cluster_id=known.cluster_id if facts.said.cluster_id and view.has_cluster_addresses() else "",
        system_roots_by_agent=facts.by_istio and not facts.grpc,
    )
    compared = selected | _mesh_failover_labels(view)
    locality = ProxyLocality(
        locality=known.locality,
        network=known.network or _network_at(view, facts.claim),
        cluster_id=known.cluster_id,
        labels=frozenset((k, v) for k, v in known.by_key if k in compared),
        network_view=frozenset(filter(None, (n.strip() for n in dict(facts.texts).get(NETWORK_VIEW, "").split(",")))),
        ipv4=scope.ipv4 or not scope.ipv6,
        ipv6=scope.ipv6,
        node=_node_of(facts, known) if view.has_node_services() else "",
    )
    workload = Workload(
        scope=scope,
        name=facts.name,
        ip_addresses=facts.ip_addresses,
        labels=labels,
        service_account=facts.service_account,
        claim=facts.claim,
        spans=_span_source(view, facts, scope, known),
        identity=facts.identity,
        system_roots=dict(facts.texts).get(SYSTEM_ROOTS, DEFAULT_SYSTEM_ROOTS),
    )
    agent = AgentKey(facts.namespace, labels, facts.agent) if facts.agent is not None else None
    return ProxyKeys(scope, locality, workload, filters, agent, facts.by_istio)


def _node_of(facts: ProxyFacts, known: EffectiveWorkload) -> str:
    return known.record.node or dict(facts.texts).get(NODE_NAME) or dict(known.by_key).get(HOSTNAME_LABEL, "")


def _span_source(view: View, facts: ProxyFacts, scope: OutboundScope, known: EffectiveWorkload) -> SpanSource:
    needs = span_needs(view, facts.namespace, scope.meta(METADATA))
    texts = dict(facts.texts)
    mesh_id = texts.get("MESH_ID", "")
    metrics = None
    if not facts.grpc and metrics_in(view, facts.namespace):
        # The registry's name first: clients have no other.
        name = _workload_at(view, facts.claim) or texts.get(WORKLOAD_NAME, "")
        account = facts.service_account
        names = workload_names(facts.namespace, dict(known.by_key), name, account, known.cluster_id)
        metrics = metric_source(facts.envoy_version, names)
    return SpanSource(
        service=facts.service_cluster if needs.service else "",
        semantic_service=facts.semantic_service if needs.semantic_service else "",
        tags=workload_tags(facts.namespace, known.by_key, mesh_id, known.cluster_id) if needs.tags else (),
        metrics=metrics,
    )


@derived
def _workload_at(view: View, claim: RegistrationClaim) -> str:
    """The name of a proxy's workload in a registry."""
    return next((e.workload for _, endpoints in registered(view, claim) for e in endpoints if e.workload), "")


@derived
def _network_at(view: View, claim: RegistrationClaim) -> str:
    """The network of a proxy's registration in Consul, for nodes without a network."""
    for key, (endpoint, *_) in registered(view, claim):
        service = view.service(key) if endpoint.registration is not None else None
        if service is not None:
            return network_at(view, service.registry, endpoint)
    return ""


@derived
def _mesh_failover_labels(view: View) -> frozenset[str]:
    """The label keys that the mesh's ``failoverPriority`` compares."""
    mesh = view.mesh()
    settings = (mesh.locality_lb_setting, mesh.zone_aware_lb_setting)
    return frozenset(label.partition("=")[0] for s in settings if s for label in s.failover_priority)


@derived
def _sidecar_for(view: View, namespace: str, labels: Labels) -> ConfigKey | None:
    """The Sidecar of a workload: the one that selects it, else its namespace's, else the root namespace's."""
    found = (
        oldest_selecting(view, "Sidecar", namespace, labels)
        or oldest_general(view, "Sidecar", namespace)
        or oldest_general(view, "Sidecar", view.root_namespace)
    )
    return found.key if found is not None else None
