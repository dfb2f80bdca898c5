"""The keys of a proxy, from the facts that its node tells and what the World says of it."""

from __future__ import annotations

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.engine.snapshots import NO_NAMES
from mesh_pilot.mesh.proxy.agent_config import AgentFacts, AgentKey, agent_facts
from mesh_pilot.mesh.proxy.gateway_selection import gateways_for
from mesh_pilot.mesh.proxy.metric_source import WORKLOAD_NAME, metric_source, metrics_in, workload_names
from mesh_pilot.mesh.proxy.proxy_config import METADATA, own_settings
from mesh_pilot.mesh.proxy.registration import RegistrationClaim, registered, registration_claim
from mesh_pilot.mesh.proxy.scope import (
    AGENT_SECRETS,
    DEFAULT_SYSTEM_ROOTS,
    HOSTNAME_LABEL,
    SCOPE_METADATA,
    SYSTEM_ROOTS,
    OutboundScope,
    ProxyLocality,
    Workload,
)
from mesh_pilot.mesh.proxy.span_source import SpanSource, semantic_service_name, span_needs, workload_tags
from mesh_pilot.mesh.proxy.workload_record import EffectiveWorkload, NodeWorkload, effective_workload
from mesh_pilot.mesh.selection.envoy_filters import FilterRef, FilterSubject, filters_for
from mesh_pilot.mesh.selection.workloads import NO_LABELS, Labels, oldest_general, oldest_selecting, selects_services
from mesh_pilot.mesh.settings.networks import network_at
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import (
    AGENT,
    CLUSTERS,
    VIRTUAL_HOSTS,
    Interception,
    NodeType,
    Proxy,
)
from mesh_pilot.world.view import View

NETWORK_VIEW = "REQUESTED_NETWORK_VIEW"
"""Node metadata: the networks, with commas, whose endpoints a proxy wants. A gateway between networks wants its own."""

NODE_NAME = "NODE_NAME"
"""Node metadata: the machine that a proxy runs on."""

ISTIO_AGENT = "PILOT_SAN"
"""Node metadata that only Istio's agents send: they always serve them."""

SPLITS_SINCE = (1, 40)
"""The first Envoy that was tested with VHDS over ADS; earlier ones refuse every route table."""


_NO_CLAIM = RegistrationClaim((), "")


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

    agent: AgentFacts | None = None
    """The facts of an agent, for its own stream."""
    by_istio: bool = False
    """True if Istio's agent serves it."""

    @property
    def has_agent_secrets(self) -> bool:
        """See ``OutboundScope.agent_secrets``."""
        return (AGENT_SECRETS, "true") in self.metadata


@attrs.frozen(cache_hash=True)
class ProxyKeys:
    """The keys by which translators produce a proxy's configuration."""

    scope: OutboundScope
    locality: ProxyLocality
    workload: Workload
    filters: tuple[FilterRef, ...] = ()
    """The EnvoyFilters that apply to it, in order."""
    agent: AgentKey | None = None
    """All that an agent's settings depend on, for its own stream."""
    by_istio: bool = False
    """See ``ProxyFacts.by_istio``."""


def shared_facts(proxy: Proxy) -> ProxyFacts:
    """The facts of a proxy without those that differ between workloads: a workload's name does not make a scope."""
    return ProxyFacts(
        type=proxy.type,
        namespace=proxy.namespace,
        claim=_NO_CLAIM,
        dns_domain=proxy.dns_domain,
        name="",
        ip_addresses=(),
        said=NodeWorkload(NO_LABELS, proxy.locality, proxy.text("NETWORK"), proxy.cluster_id),
        interception=proxy.interception,
        metadata=_scope_metadata(proxy),
        service_account="",
        grpc=proxy.is_grpc,
        identity="",
        version=proxy.text("ISTIO_VERSION"),
        envoy_version=proxy.version,
        split=_uses_vhds(proxy),
        on_demand=proxy.incremental and not proxy.is_grpc and proxy.text(CLUSTERS).lower() == "on-demand",
        by_istio=ISTIO_AGENT in proxy.metadata,
    )


def proxy_facts(proxy: Proxy) -> ProxyFacts:
    """The facts of a connected proxy."""
    shared = shared_facts(proxy)
    return attrs.evolve(
        shared,
        claim=registration_claim(proxy),
        name=proxy.name,
        ip_addresses=proxy.ip_addresses,
        said=NodeWorkload(frozenset(proxy.labels.items()), proxy.locality, shared.said.network, proxy.cluster_id),
        service_account=proxy.text("SERVICE_ACCOUNT"),
        identity=proxy.identity,
        texts=frozenset((k, v) for k, v in proxy.metadata.items() if isinstance(v, str) and k != AGENT),
        service_cluster=proxy.cluster,
        semantic_service=semantic_service_name(proxy),
        agent=agent_facts(proxy),
    )


def as_known(view: View, proxy: Proxy) -> Proxy:
    """The proxy with the labels by which objects select it, in the place of those that its node says."""
    facts = proxy_facts(proxy)
    known = effective_workload(view, facts.claim, facts.said, router=proxy.type is NodeType.ROUTER)
    return attrs.evolve(proxy, labels=dict(known.by_key))


def _uses_vhds(proxy: Proxy) -> bool:
    """True if virtual hosts are separate resources: metadata ask for it, and the version, if told, supports it."""
    if not proxy.incremental or proxy.is_grpc or proxy.text(VIRTUAL_HOSTS).lower() != "split":
        return False
    version = tuple(int(part) for part in proxy.version.split(".") if part.isdecimal())
    return not version or version >= SPLITS_SINCE


def has_agent_secrets(proxy: Proxy) -> bool:
    """See ``OutboundScope.agent_secrets``."""
    return not proxy.is_grpc and (has_our_agent(proxy) or ISTIO_AGENT in proxy.metadata)


def has_our_agent(proxy: Proxy) -> bool:
    """True if the proxy has an agent of ours, which follows the roots that it is sent."""
    return str(proxy.metadata.get(AGENT_SECRETS, "")).lower() == "true"


def _scope_metadata(proxy: Proxy) -> Labels:
    metadata = proxy.metadata
    found = {key: str(metadata[key]) for key in SCOPE_METADATA if key in metadata}
    found.pop(METADATA, None)
    if settings := own_settings(metadata.get(METADATA)):
        found[METADATA] = settings
    if has_agent_secrets(proxy):
        found[AGENT_SECRETS] = "true"
    return frozenset(found.items())


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
        labels=frozenset((k, v) for k, v in labels if k in selected) or NO_LABELS,
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
        labels=frozenset((k, v) for k, v in known.by_key if k in compared) or NO_LABELS,
        network_view=_network_view(facts),
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


def _network_view(facts: ProxyFacts) -> frozenset[str]:
    named = dict(facts.texts).get(NETWORK_VIEW, "")
    return frozenset(filter(None, map(str.strip, named.split(",")))) if named else NO_NAMES


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
