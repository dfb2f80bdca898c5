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

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import Query, derived
from mesh_pilot.mesh.envoy_filter_selection import Described, FilterRef, filters_for
from mesh_pilot.mesh.proxy.proxy_config import METADATA, own_settings
from mesh_pilot.mesh.proxy.registration import RegistrationClaim, registered, registration_claim
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource, span_needs, workload_tags
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Interception, NodeType, Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import NOWHERE, Locality
from mesh_pilot.world.view import View

Labels = frozenset[tuple[str, str]]

ResourceQuery = Query[Resource | None]
"""How to get one resource."""

Plan = Mapping[str, ResourceQuery]
"""Resource name -> how to get it. Cheap to make and to compare; making one encodes nothing."""

PlanQuery = Query[Plan]

PlanShards = tuple[PlanQuery, ...]
"""A plan in parts that have no name in common, so that a change costs only the part that it is in."""


@derived
def single_shard(_: View, plan: PlanQuery) -> PlanShards:
    """A plan that is not sharded."""
    return (plan,)


def merged_plan(view: View, plans: PlanShards) -> Plan:
    """A plan in parts as one."""
    whole: dict[str, ResourceQuery] = {}
    for plan in plans:
        whole.update(plan.get(view))
    return whole


SCOPE_METADATA = (
    "DNS_AUTO_ALLOCATE",
    "DNS_CAPTURE",
    "HTTP10",
    "HTTP_PROXY_PORT",
    "IDLE_TIMEOUT",
    "INBOUND_LISTENER_EXACT_BALANCE",
    "OUTBOUND_LISTENER_EXACT_BALANCE",
    METADATA,
    "ROUTER_MODE",
    "TLS_CLIENT_CERT_CHAIN",
    "TLS_CLIENT_KEY",
    "TLS_CLIENT_ROOT_CERT",
    "TLS_SERVER_CERT_CHAIN",
    "TLS_SERVER_KEY",
    "TLS_SERVER_ROOT_CERT",
    "UNPRIVILEGED_POD",
)
"""Node metadata that translators may depend on, by ``Scope.meta``."""

SPLITS_SINCE = (1, 40)
"""The Envoy that was seen to take virtual hosts over ADS; an earlier one may refuse every route table."""


@attrs.frozen(cache_hash=True)
class OutboundScope:
    """All that a proxy's outbound (or gateway) config depends on, besides the World."""

    type: NodeType
    namespace: str
    dns_domain: str
    """The proxy's own search domain, ``shop.svc.cluster.local``."""
    sidecar: ConfigKey | None = None
    """The Sidecar that applies, if any."""
    labels: Labels = frozenset()
    """Only those of the proxy's labels that some config selects on (``view.selected_labels()``)."""
    gateways: tuple[ConfigKey, ...] = ()
    """For a router: the Gateways whose selector picks it, oldest first."""
    interception: Interception = Interception.REDIRECT
    ipv4: bool = True
    ipv6: bool = False
    metadata: frozenset[tuple[str, str]] = frozenset()
    grpc: bool = False
    """A proxyless gRPC client."""
    certified: bool = True
    """Whether it gets a certificate of the mesh from us. One that does not is left to plaintext where that is allowed:
    it would wait for the certificate for ever."""
    split: bool = False
    """Whether the virtual hosts of its route tables are resources of their own."""
    on_demand: bool = False
    """Whether clusters that only routes name wait for a request."""

    def meta(self, key: str) -> str:
        """A value of SCOPE_METADATA as text, empty when absent."""
        for name, value in self.metadata:
            if name == key:
                return value
        return ""

    def is_on(self, key: str) -> bool:
        """Whether a switch of SCOPE_METADATA is on."""
        return self.meta(key).lower() == "true"

    @property
    def auto_addresses(self) -> bool:
        """Whether its clients reach services without addresses at those that are given them, as its own DNS says.

        They are of IPv4, and of no use to others.
        """
        return self.ipv4 and self.is_on("DNS_CAPTURE") and self.is_on("DNS_AUTO_ALLOCATE")

    @property
    def wildcard(self) -> str:
        """The address that means every local one."""
        return "0.0.0.0" if self.ipv4 else "::"

    @property
    def loopback(self) -> str:
        return "127.0.0.1" if self.ipv4 else "::1"


@attrs.frozen(cache_hash=True)
class ProxyLocality:
    """Where a proxy runs."""

    locality: Locality
    network: str
    cluster_id: str
    labels: Labels
    """Those of its labels that some ``failoverPriority`` may compare with the endpoints'."""


@attrs.frozen(cache_hash=True)
class Workload:
    """A proxy's own side."""

    scope: OutboundScope
    name: str
    ip_addresses: tuple[str, ...]
    labels: Labels
    service_account: str
    claim: RegistrationClaim
    """Beside which endpoints it runs; where the node does not say its NAMESPACE, those of every namespace."""
    spans: SpanSource = NO_SOURCE
    """What its spans say of it."""


@attrs.frozen(cache_hash=True)
class ProxyFacts:
    """What is read of a proxy: hashable, fixed for the life of its stream."""

    type: NodeType
    namespace: str
    claim: RegistrationClaim
    dns_domain: str
    name: str
    ip_addresses: tuple[str, ...]
    labels: Labels
    interception: Interception
    metadata: frozenset[tuple[str, str]]
    service_account: str
    locality: Locality
    network: str
    cluster_id: str
    grpc: bool
    certified: bool
    version: str = ""
    """Istio's, as the proxy says it; empty where it does not."""
    split: bool = False
    """Whether it gets virtual hosts as resources of their own."""
    on_demand: bool = False
    """Whether it asks for clusters when it needs them."""
    texts: frozenset[tuple[str, str]] = frozenset()
    """All of the node's metadata that is text: EnvoyFilters can ask for any."""
    service_cluster: str = ""
    """The node's own cluster, ``web.shop``."""


@attrs.frozen(cache_hash=True)
class ProxyKeys:
    """A proxy as translators see it."""

    scope: OutboundScope
    place: ProxyLocality
    workload: Workload
    filters: tuple[FilterRef, ...] = ()
    """The EnvoyFilters that apply to it, in order; for most proxies there are none."""


def proxy_facts(proxy: Proxy, *, split: bool = False) -> ProxyFacts:
    """What translators may know of a connected proxy; ``split`` is for proxies that do not say how they get virtual
    hosts."""
    metadata = proxy.metadata
    return ProxyFacts(
        type=proxy.type,
        namespace=proxy.namespace,
        claim=registration_claim(proxy),
        dns_domain=proxy.dns_domain,
        name=proxy.name,
        ip_addresses=proxy.ip_addresses,
        labels=frozenset(proxy.labels.items()),
        interception=proxy.interception,
        metadata=_scope_metadata(metadata),
        service_account=proxy.text("SERVICE_ACCOUNT"),
        locality=proxy.locality,
        network=proxy.text("NETWORK"),
        cluster_id=proxy.text("CLUSTER_ID"),
        grpc=proxy.is_grpc,
        certified=bool(proxy.identity),
        version=proxy.text("ISTIO_VERSION"),
        split=_gets_hosts_apart(proxy, split),
        on_demand=proxy.incremental and not proxy.is_grpc and proxy.text(CLUSTERS).lower() == "on-demand",
        texts=frozenset((k, v) for k, v in metadata.items() if isinstance(v, str)),
        service_cluster=proxy.cluster,
    )


def _gets_hosts_apart(proxy: Proxy, default: bool) -> bool:
    """Whether virtual hosts are sent by themselves. Where the proxy does not ask for it, it must be able to."""
    if not proxy.incremental or proxy.is_grpc:
        return False
    asked = proxy.text(VIRTUAL_HOSTS)
    return asked.lower() == "split" if asked else default and _numbers(proxy.version) >= SPLITS_SINCE


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _scope_metadata(metadata: Mapping[str, Any]) -> Labels:
    found = {key: str(metadata[key]) for key in SCOPE_METADATA if key in metadata}
    found[METADATA] = own_settings(metadata.get(METADATA))
    return frozenset((key, value) for key, value in found.items() if value or key != METADATA)


@derived
def proxy_keys(view: View, facts: ProxyFacts) -> ProxyKeys:
    """The parts of a proxy; they change when a Sidecar or Gateway begins or ceases to select it."""
    router = facts.type is NodeType.ROUTER
    selected = view.selected_labels()
    labels = facts.labels or _labels_at(view, facts.claim)
    # What a proxyless client understands of xDS is too little to be patched.
    described = Described(facts.namespace, labels, facts.version, facts.texts)
    filters = () if facts.grpc else filters_for(view, described)
    scope = OutboundScope(
        type=facts.type,
        namespace=facts.namespace,
        dns_domain=facts.dns_domain,
        sidecar=None if router else _sidecar_for(view, facts.namespace, labels),
        labels=frozenset((k, v) for k, v in labels if k in selected),
        gateways=_gateways_for(view, facts.namespace, labels) if router else (),
        interception=facts.interception,
        ipv4=any(":" not in ip for ip in facts.ip_addresses),
        ipv6=any(":" in ip for ip in facts.ip_addresses),
        metadata=facts.metadata,
        grpc=facts.grpc,
        certified=facts.certified,
        split=facts.split,
        # Patches may name any cluster.
        on_demand=facts.on_demand and not router and not filters,
    )
    compared = selected | _mesh_failover_labels(view)
    place = ProxyLocality(
        locality=_known(facts.locality) or _locality_at(view, facts.claim),
        network=facts.network,
        cluster_id=facts.cluster_id,
        labels=frozenset((k, v) for k, v in labels if k in compared),
    )
    workload = Workload(
        scope=scope,
        name=facts.name,
        ip_addresses=facts.ip_addresses,
        labels=labels,
        service_account=facts.service_account,
        claim=facts.claim,
        spans=_span_source(view, facts, scope, labels),
    )
    return ProxyKeys(scope, place, workload, filters)


def _span_source(view: View, facts: ProxyFacts, scope: OutboundScope, labels: Labels) -> SpanSource:
    needs = span_needs(view, facts.namespace, scope.meta(METADATA))
    mesh_id = dict(facts.texts).get("MESH_ID", "")
    return SpanSource(
        service=facts.service_cluster if needs.service else "",
        tags=workload_tags(facts.namespace, labels, mesh_id, facts.cluster_id) if needs.tags else (),
    )


@derived
def _labels_at(view: View, claim: RegistrationClaim) -> Labels:
    """The labels that a registry gives a proxy's workload: for a node that does not say its own."""
    return next((frozenset(endpoints[0].labels.items()) for _, endpoints in registered(view, claim)), frozenset())


def _known(locality: Locality) -> Locality | None:
    return None if locality == NOWHERE else locality


@derived
def _locality_at(view: View, claim: RegistrationClaim) -> Locality:
    """The locality that a registry gives a proxy's workload: for a node that does not say its own."""
    return next((endpoints[0].locality for _, endpoints in registered(view, claim)), NOWHERE)


@derived
def _mesh_failover_labels(view: View) -> frozenset[str]:
    """The label keys that the mesh's own ``failoverPriority`` compares."""
    mesh = view.mesh()
    settings = (mesh.locality_lb_setting, mesh.zone_aware_lb_setting)
    return frozenset(label.partition("=")[0] for s in settings if s for label in s.failover_priority)


@derived
def _sidecar_for(view: View, namespace: str, labels: Labels) -> ConfigKey | None:
    """The Sidecar of a workload: the oldest that selects it, else its namespace's, else the root namespace's."""
    default: Config | None = None
    for config in view.configs("Sidecar", namespace):
        spec: api.Sidecar = config.spec
        selector = spec.workload_selector
        if selector is None or not selector.labels:
            default = default or config
        elif selector.labels.items() <= labels:
            return config.key
    if default is not None:
        return default.key
    root = view.root_namespace
    if root != namespace:
        for config in view.configs("Sidecar", root):
            if config.spec.workload_selector is None or not config.spec.workload_selector.labels:
                return config.key
    return None


@derived
def _gateways_for(view: View, namespace: str, labels: Labels) -> tuple[ConfigKey, ...]:
    """The Gateways whose selector picks a router with these labels; an empty selector picks every router."""
    return tuple(c.key for c in view.all_configs("Gateway") if c.spec.selector.items() <= labels)
