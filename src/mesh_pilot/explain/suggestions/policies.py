"""An AuthorizationPolicy for each workload that was called, which admits who called it, at the ports that were used.

A caller is the principal of its certificate. No rule can name the callers of a port that takes calls without mTLS:
such a port is left open, and said to be. So is one at which more arrived than all proxies together say that they sent:
the rest comes from outside the mesh. Methods and paths are not counted, and are not in the rules.

Why a workload with an ALLOW policy gets none: rules of ALLOW policies add up, so that another one could only admit
more than its author meant to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettingsTlSmode
from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.api.istio.type import v1beta1 as api_type
from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.observed import Observed, Skipped, Suggestion, Suggestions
from mesh_pilot.explain.suggestions.workloads import (
    KeyedProxy,
    SelectedWorkloads,
    WorkloadSelectors,
    free_name,
    keyed_proxies,
    named,
)
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref, traffic_policy
from mesh_pilot.mesh.names.resources import INBOUND_PASSTHROUGH, ClusterName
from mesh_pilot.mesh.policies.peer_authentication import PeerMode, client_mtls, peer_mode
from mesh_pilot.mesh.proxy.registration import registered
from mesh_pilot.mesh.selection.workloads import selected
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.counts import counted
from mesh_pilot.model.service import MESH_TLS_MODE, Endpoint, Port, Service
from mesh_pilot.model.spiffe import SCHEME
from mesh_pilot.model.traffic import Counter
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world.view import View

API_VERSION = "security.istio.io/v1"

TOLERANCE, SLACK = 1.05, 20
"""More arrivals than this share of what was sent, and than so many more, come from elsewhere: two proxies never count
at the same time."""

_ALLOW = api.AuthorizationPolicyAction.ALLOW
_MUTUAL = ClientTlsSettingsTlSmode.ISTIO_MUTUAL


def suggest_policies(view: View, proxies: Sequence[ConnectedProxy], seen: Observed, namespace: str = "") -> Suggestions:
    """The AuthorizationPolicies for the workloads of a namespace, or of all."""
    return _Policies(view, proxies, seen).suggestions(namespace)


@attrs.frozen
class _Served:
    """A port of a service, at one of its proxies."""

    proxy: KeyedProxy
    service: Service
    port: Port
    endpoint: Endpoint


@attrs.frozen
class _Caller:
    """A workload that called a port of a service."""

    workload: CallingWorkload
    cluster: ClusterName
    counts: Counts


@attrs.define
class _Admitted:
    """The callers that may come to a port. Mutable while they are found."""

    principals: set[str] = attrs.field(factory=set)
    namespaces: set[str] = attrs.field(factory=set)
    is_open: bool = False

    @property
    def key(self) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        if self.is_open:
            return True, (), ()
        return False, tuple(sorted(self.principals)), tuple(sorted(self.namespaces))


class _Policies:
    """Mutable state: what was found so far, and the names that are taken."""

    def __init__(self, view: View, proxies: Sequence[ConnectedProxy], seen: Observed) -> None:
        self._view = view
        self._seen = seen
        self._proxies = keyed_proxies(view, proxies, seen)
        self._taken = {config.key for config in view.all_configs("AuthorizationPolicy")}
        self._served: defaultdict[str, list[_Served]] = defaultdict(list)
        self._by_host: defaultdict[tuple[str, int], list[_Served]] = defaultdict(list)
        for proxy in self._proxies:
            for each in _served_by(view, proxy):
                self._served[proxy.proxy.id].append(each)
                self._by_host[each.service.host, each.port.number].append(each)
        self._callers: defaultdict[tuple[str, int], list[_Caller]] = defaultdict(list)
        for workload, clusters in seen.calls.items():
            for cluster, counts in clusters.items():
                self._callers[cluster.host, cluster.port].append(_Caller(workload, cluster, counts))
        self._by_workload: defaultdict[CallingWorkload, list[KeyedProxy]] = defaultdict(list)
        for proxy in self._proxies:
            if proxy.workload is not None:
                self._by_workload[proxy.workload].append(proxy)

    def suggestions(self, namespace: str) -> Suggestions:
        objects: list[Suggestion] = []
        skipped: list[Skipped] = []
        selectors = WorkloadSelectors(self._seen, self._proxies)
        for group in selectors.groups(namespace):
            served = [each for proxy in group.proxies for each in self._served.get(proxy.proxy.id, ())]
            if reason := self._reason_against(group, served):
                skipped.append(Skipped(group.name, reason))
            else:
                objects.append(self._policy(group, served))
        for workload in selectors.without_labels(namespace):
            reason = "it has no labels by which a policy could select it"
            skipped.append(Skipped(f"{workload.namespace}/{workload.name}", reason))
        return Suggestions(objects, skipped)

    def _reason_against(self, group: SelectedWorkloads, served: Sequence[_Served]) -> str:
        if not group.proxies:
            return "no proxy of it is connected"
        if group.silent:
            return f"{named(group.silent)} {'does' if len(group.silent) == 1 else 'do'} not report"
        if group.namespace == self._view.root_namespace:
            return "a policy of the root namespace would select workloads of all namespaces"
        for proxy in group.proxies:
            for key in selected(self._view, "AuthorizationPolicy", group.namespace, proxy.labels):
                config = self._view.config(key)
                if config is not None and config.spec.action == _ALLOW:
                    return f"{key} allows calls already"
        if not any(self._callers.get((each.service.host, each.port.number)) for each in served):
            return "no proxy counted a call of it"
        return ""

    def _policy(self, group: SelectedWorkloads, served: Sequence[_Served]) -> Suggestion:
        ports: dict[int, _Admitted] = {}
        why: dict[str, str] = {}
        notes: dict[str, None] = {}
        for each in served:
            callers = self._callers.get((each.service.host, each.port.number), ())
            if callers:
                admitted = ports.setdefault(each.endpoint.port, _Admitted())
                for caller in callers:
                    self._admit(admitted, each, caller, why, notes)
        for port, admitted in ports.items():
            notes |= dict.fromkeys(self._notes_of_arrivals(group, port, served, admitted))
        if any(self._seen.used(member, INBOUND_PASSTHROUGH) for member in group.members):
            notes["Calls came to ports that no service declares: they would be refused."] = None
        if len(group.members) > 1:
            notes[f"For {named(sorted({each.name for each in group.members}))}: one selector finds all of them."] = None
        key = free_name(group.members[0].name, group.namespace, "AuthorizationPolicy", self._taken)
        self._taken.add(key)
        spec = api.AuthorizationPolicy(
            selector=api_type.WorkloadSelector(match_labels=dict(sorted(group.selector))),
            action=_ALLOW,
            rules=_rules(ports),
        )
        config = Config(key, spec, api_version=API_VERSION, origin=Origin("suggestion"))
        return Suggestion(config, why, [*notes], tuple(each.proxy.name for each in group.proxies))

    def _admit(
        self, admitted: _Admitted, served: _Served, caller: _Caller, why: dict[str, str], notes: dict[str, None]
    ) -> None:
        """Admit a caller to a port: by its principal, else by its namespace, else whoever comes."""
        workload = caller.workload
        name = f"{workload.namespace}/{workload.name}"
        proxies = self._by_workload.get(workload, ())
        has_mtls = all(self._has_identity(proxy, served, caller.cluster) for proxy in proxies)
        if not (has_mtls and self._takes_mtls(served)):
            admitted.is_open = True
            note = f"Port {served.endpoint.port} stays open: {name} calls it without mTLS, so no rule can name it."
            notes[note] = None
        elif workload.principal:
            principal = workload.principal.removeprefix(SCHEME)
            admitted.principals.add(principal)
            if any(not proxy.is_sidecar for proxy in proxies):
                why[principal] = "a gateway: any client that it lets in"
        else:
            admitted.namespaces.add(workload.namespace)
            why[workload.namespace] = f"the identity of {name} is unknown"

    def _takes_mtls(self, served: _Served) -> bool:
        keys = served.proxy.keys
        mode = peer_mode(self._view, keys.scope.namespace, served.proxy.labels, served.endpoint.port)
        return mode is not PeerMode.DISABLE and keys.scope.has_certificate

    def _has_identity(self, caller: KeyedProxy, served: _Served, cluster: ClusterName) -> bool:
        """True if a caller shows its certificate to a port."""
        scope, service = caller.keys.scope, served.service
        rule = destination_rule_ref(self._view, scope.namespace, scope.labels, service.key)
        tls = traffic_policy(self._view, rule, served.port.number, cluster.subset).tls
        if not scope.has_certificate:
            return False
        if tls is not None:
            return tls.mode == _MUTUAL
        mode = client_mtls(self._view, service.key, served.port.name, False)
        is_auto = cluster_defaults(self._view).auto_mtls and mode not in (None, PeerMode.DISABLE)
        return is_auto and served.endpoint.tls_mode == MESH_TLS_MODE

    def _notes_of_arrivals(
        self, group: SelectedWorkloads, port: int, served: Sequence[_Served], admitted: _Admitted
    ) -> Iterator[str]:
        """Opens a port at which more arrived than was sent."""
        hosts = {(each.service.host, each.port.number) for each in served if each.endpoint.port == port}
        arrived = [*self._arrivals(hosts)]
        if not arrived:
            yield f"Nothing counts what arrives at port {port}: callers outside the mesh would be refused."
            return
        sent = sum(_number(caller.counts) for host in hosts for caller in self._callers.get(host, ()))
        more = sum(map(_number, arrived)) - sent
        if more > sent * (TOLERANCE - 1) + SLACK:
            admitted.is_open = True
            yield f"Port {port} stays open: {counted(more, 'call')} more arrived than proxies say that they sent."

    def _arrivals(self, hosts: Iterable[tuple[str, int]]) -> Iterator[Counts]:
        """The counts of all who serve any of these ports of services, each once."""
        places = {(each.proxy.workload, each.endpoint.port) for host in hosts for each in self._by_host[host]}
        for workload, port in places:
            counts = self._seen.arrivals.get(workload, {}).get(port) if workload is not None else None
            if counts is not None:
                yield counts


def _served_by(view: View, proxy: KeyedProxy) -> Iterator[_Served]:
    """The ports of services that a sidecar serves."""
    if not proxy.is_sidecar:
        return
    for key, endpoints in registered(view, proxy.keys.workload.claim):
        service = view.service(key)
        if service is None:
            continue
        for endpoint in endpoints:
            port = next((each for each in service.ports if each.name == endpoint.service_port), None)
            if port is not None:
                yield _Served(proxy, service, port, endpoint)


def _number(counts: Counts) -> int:
    """Attempts: a request that is retried arrives twice. Of TCP, connections.

    Agents count requests and retries, load reports attempts; of a workload there may be both.
    """
    attempts = max(counts[Counter.REQUESTS] + counts[Counter.RETRIES], counts[Counter.ATTEMPTS])
    return attempts or counts[Counter.CONNECTIONS]


def _rules(ports: Mapping[int, _Admitted]) -> list[api.Rule]:
    """A rule for each set of callers, with its ports."""
    found: dict[tuple[bool, tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for port, admitted in sorted(ports.items()):
        found.setdefault(admitted.key, []).append(port)
    rules = []
    for (_, principals, namespaces), numbers in found.items():
        sources = [api.Source(principals=[*principals])] if principals else []
        sources += [api.Source(namespaces=[*namespaces])] if namespaces else []
        rules.append(
            api.Rule(
                from_=[api.RuleFrom(source=source) for source in sources],
                to=[api.RuleTo(operation=api.Operation(ports=[str(number) for number in numbers]))],
            )
        )
    return rules
