"""Services, subsets, VirtualServices and rules of policies that no traffic has used, where that is asked about.

All of it is as far as proxies report: a message names how many do not. Rules are counted for requests, not for other
connections, and only where a proxy's bootstrap asks for it. Where it does not, nothing is known, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.security.v1beta1 import AuthorizationPolicyAction as Action
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers.policies import selector_of
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.explain.analysis.traffic import SeenTraffic
from mesh_pilot.mesh.policies.context import is_in_dry_run
from mesh_pilot.mesh.virtual_services.rules import destinations_of
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.proxy import RBAC_RULE_STATS, Proxy
from mesh_pilot.model.service import Service

NAMED = 3
"""Proxies that a message names."""


def services(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Services that no proxy has called. Of an alias the service that it stands for is called."""
    seen = survey.picture.traffic
    if seen is None:
        return
    for service in survey.picture.services.values():
        if service is None or not service.ports or service.host in seen.hosts:
            continue
        config, path = _declared(survey, service)
        yield found(codes.SERVICE_NOT_CALLED, config, path, service.host, _length(survey, seen))


def _declared(survey: AnalysisContext, service: Service) -> tuple[Config, str]:
    """The object that declares a service, and the field; for one of a registry its name."""
    config = survey.picture.configs.get(service.config) if service.config is not None else None
    if config is None:
        return Config(ConfigKey("Service", service.namespace, service.host), None, origin=Origin(service.registry)), ""
    hosts = getattr(config.spec, "hosts", [])
    return config, f"spec.hosts[{hosts.index(service.host)}]" if service.host in hosts else ""


def subsets(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Subsets of called services that no proxy has called."""
    seen = survey.picture.traffic
    if seen is None:
        return
    for config in survey.of("DestinationRule"):
        host = survey.full_host(config.spec.host, config.namespace)
        if host not in seen.hosts:
            continue  # told of the service, or a wildcard
        for index, subset in enumerate(config.spec.subsets):
            if (host, subset.name) not in seen.subsets:
                path, length = f"spec.subsets[{index}].name", _length(survey, seen)
                yield found(codes.SUBSET_NOT_CALLED, config, path, subset.name, host, length)


def virtual_services(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """VirtualServices of which no destination was called. Those that only redirect are not counted by anything."""
    seen = survey.picture.traffic
    if seen is None:
        return
    for config in survey.of("VirtualService"):
        wanted = {*_destinations(survey, config)}
        if wanted and not wanted & seen.subsets:
            yield found(codes.DESTINATIONS_NOT_CALLED, config, "spec.hosts", _length(survey, seen))


def _destinations(survey: AnalysisContext, config: Config) -> Iterator[tuple[str, str]]:
    """Hosts and subsets that a VirtualService leads to, also by its delegates."""
    spec: api.VirtualService = config.spec
    for rule in spec.http:
        if rule.delegate is not None:
            where = rule.delegate.namespace or config.namespace
            delegate = survey.picture.find("VirtualService", where, rule.delegate.name)
            for inner in delegate.spec.http if delegate is not None else ():
                yield from (_named(survey, each, where) for each in destinations_of(inner))
        yield from (_named(survey, each, config.namespace) for each in destinations_of(rule))
    of_connections: tuple[api.TlsRoute | api.TcpRoute, ...] = (*spec.tls, *spec.tcp)
    for connections in of_connections:
        for route in connections.route:
            if route.destination is not None:
                yield _named(survey, route.destination, config.namespace)


def _named(survey: AnalysisContext, destination: api.Destination, namespace: str) -> tuple[str, str]:
    host = survey.full_host(destination.host, namespace)
    return survey.picture.aliases.get(host, host), destination.subset


def rules(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Rules of ALLOW and DENY that no request has met, and policies of which that is not known."""
    seen = survey.picture.traffic
    if seen is None:
        return
    for config in survey.of("AuthorizationPolicy"):
        spec = config.spec
        if spec.action not in (Action.ALLOW, Action.DENY) or spec.target_ref or spec.target_refs:
            continue
        # A dry run is not meant to deny anything; of a policy that selects no workload another analyzer says so.
        proxies = [] if is_in_dry_run(config) else _selected(survey, config)
        names = [f"ns[{config.namespace}]-policy[{config.name}]-rule[{n}]" for n in range(len(spec.rules))]
        unmet = [number for number, name in enumerate(names) if name not in seen.rules]
        if not proxies or not unmet:
            continue
        if silent := [each.name for each in proxies if each.id not in seen.reporting or not _counts_rules(each)]:
            more = f" and {len(silent) - NAMED} others" if len(silent) > NAMED else ""
            who = f"{', '.join(silent[:NAMED])}{more}"
            yield found(codes.RULES_NOT_COUNTED, config, "", who)
            continue
        for number in unmet:
            yield found(codes.RULE_NOT_MET, config, f"spec.rules[{number}]", number, _length(survey, seen))


def _selected(survey: AnalysisContext, config: Config) -> list[Proxy]:
    """The connected proxies that a policy selects."""
    labels = selector_of(config).items()
    everywhere = config.namespace == survey.root_namespace
    return [
        proxy
        for proxy in survey.picture.proxies or ()
        if (everywhere or proxy.namespace == config.namespace) and labels <= proxy.labels.items()
    ]


def _counts_rules(proxy: Proxy) -> bool:
    return str(proxy.metadata.get(RBAC_RULE_STATS, "")).lower() == "true"


def _length(survey: AnalysisContext, seen: SeenTraffic) -> str:
    """The time, and how many do not report."""
    proxies = survey.picture.proxies or ()
    silent = sum(each.id not in seen.reporting for each in proxies)
    return f"{seen.length} ({silent} of {len(proxies)} proxies do not report)" if silent else seen.length
