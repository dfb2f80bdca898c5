"""DestinationRules: their hosts, subsets, credentials and modes of TLS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers.kubernetes import says_protocol
from mesh_pilot.explain.analysis.analyzers.virtual_services import RouteTarget, route_targets
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.hosts import KnownHost
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name
from mesh_pilot.explain.analysis.workloads import of_locality
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.names import MESH_GATEWAY, export_namespaces, exported_to

Mode = api.ClientTlsSettingsTlSmode
_VERIFYING = (Mode.SIMPLE, Mode.MUTUAL)


def hosts_and_subsets(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Hosts that do not exist, and subsets that select no endpoint."""
    for config in survey.of("DestinationRule"):
        spec = config.spec
        full = survey.full_host(spec.host, config.namespace)
        known = survey.hosts.find(spec.host, config.namespace, spec.export_to)
        # A host may be that of a registry that is not read, or a wildcard over several; a subset may be of Pods that
        # are not in the picture. Only what is certainly wrong is said.
        if known is None:
            if survey.hosts.may_be_elsewhere(full) or _covers_any(survey, full):
                continue
            near = survey.hosts.meant(spec.host, config.namespace)
            fix = f"Did you mean {near}?" if near else ""
            yield found(codes.UNKNOWN_RULE_HOST, config, "spec.host", spec.host, fix=fix)
            continue
        if known.host != full and not full.startswith("*") and not _covers_any(survey, full):
            reason = f"has no effect: proxies have a cluster for {known.host}, for none of the hosts below it"
            yield found(codes.FIELD_WITHOUT_EFFECT, config, "spec.host", reason, fix=f"Write {known.host}.")
            continue
        labels = _endpoint_labels(survey, known)
        if not labels and not survey.has_pods and not _is_of_kubernetes(known):
            continue
        for index, subset in enumerate(spec.subsets):
            wanted = {**known.selector, **subset.labels}
            if any(subset.labels.items() <= own.items() for own in labels):
                continue
            has_workloads = survey.has_pods or _is_of_kubernetes(known)
            if not has_workloads or not survey.workloads.matching("", wanted):
                yield found(codes.SUBSET_SELECTS_NOTHING, config, f"spec.subsets[{index}].labels", subset.name)


def _covers_any(survey: AnalysisContext, host: str) -> bool:
    """True for a wildcard that covers a host that is known, or may cover one of a registry."""
    return host.startswith("*") and (host == "*" or not survey.has_pods or survey.hosts.any_within(host))


def _is_of_kubernetes(known: KnownHost) -> bool:
    return known.config is not None and known.config.key.kind == "Service"


def _endpoint_labels(survey: AnalysisContext, known: KnownHost) -> list[Mapping[str, str]]:
    endpoints = survey.picture.endpoints.get(ServiceKey(known.host, known.namespace), ())
    distinct = {frozenset({**of_locality(e.locality), **e.labels}.items()) for e in endpoints}
    distinct.discard(frozenset())
    return [dict(labels) for labels in distinct]


def unseen_subsets(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Subsets that sidecars of a VirtualService's namespace lack, because rules of other namespaces are not theirs."""
    default = survey.mesh.default_destination_rule_export_to
    of_host: dict[str, _Rules] = defaultdict(list)
    for rule in survey.of("DestinationRule"):
        exports = export_namespaces(rule.spec.export_to, default, rule.namespace)
        of_host[survey.full_host(rule.spec.host, rule.namespace)].append((rule, exports))
    if any("*" in host for host in of_host):
        return  # Which of several rules applies is more than is known here.
    for config in survey.of("VirtualService"):
        if MESH_GATEWAY in (config.spec.gateways or [MESH_GATEWAY]):
            for target in route_targets(config.spec):
                host = survey.full_host(target.destination.host, config.namespace)
                yield from _unseen(survey, config, target, host, of_host[host])


_Rules = list[tuple[Config, frozenset[str]]]
"""DestinationRules, each with the namespaces that may see it."""


def _unseen(
    survey: AnalysisContext, config: Config, target: RouteTarget, host: str, rules: _Rules
) -> Iterator[AnalysisMessage]:
    name = target.destination.subset
    having = [rule for rule, _ in rules if any(subset.name == name for subset in rule.spec.subsets)]
    owners = sorted({known.namespace for known in survey.hosts.named(host)})
    if not name or not having or not owners:
        return
    seen = _seen(rules, config.namespace, [*owners, survey.root_namespace])
    if not any(subset.name == name for rule in seen for subset in rule.spec.subsets):
        other = full_name(having[0])
        reason = f"clients of {config.namespace} have no subset {name} of {host}: {other} is not for them"
        fix = f"Rules of {config.namespace} count for them, else those that {', '.join(owners)} exports to it."
        yield found(codes.UNUSABLE_REFERENCE, config, f"{target.path}.subset", reason, fix=fix)


def _seen(rules: _Rules, client: str, owners: Sequence[str]) -> list[Config]:
    """The rules for a host that a namespace's clients use: its own, else the service's, else the root namespace's."""
    for place in (client, *owners):
        there = [rule for rule, exports in rules if rule.namespace == place and exported_to(exports, client)]
        if there:
            return there
    return []


def ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Settings for ports that the host does not have, such as those that its workloads listen on."""
    for config in survey.of("DestinationRule"):
        spec = config.spec
        host = survey.full_host(spec.host, config.namespace)
        numbers = sorted({port.number for known in survey.hosts.named(host) for port in known.ports})
        if not numbers or "*" in host or survey.hosts.may_be_elsewhere(host):
            continue
        policies = [("spec.trafficPolicy", spec.traffic_policy)]
        policies += [
            (f"spec.subsets[{i}].trafficPolicy", subset.traffic_policy) for i, subset in enumerate(spec.subsets)
        ]
        for path, policy in policies:
            for index, settings in enumerate(policy.port_level_settings if policy is not None else ()):
                if settings.port is not None and settings.port.number not in numbers:
                    there = ", ".join(map(str, numbers))
                    reason = f"has no effect: {host} has no port {settings.port.number}; clients call it at {there}"
                    place = f"{path}.portLevelSettings[{index}].port.number"
                    yield found(codes.FIELD_WITHOUT_EFFECT, config, place, reason)


def certificates(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """TLS without CA certificates: servers are verified by those of each proxy's operating system."""
    for config in survey.of("DestinationRule"):
        policy: api.TrafficPolicy | None = config.spec.traffic_policy
        if policy is None:
            continue
        name, namespace, host = full_name(config), config.namespace, config.spec.host
        if _names_no_roots(config, policy.tls):
            assert policy.tls is not None
            arguments = name, namespace, policy.tls.mode.name, host
            yield found(codes.NO_CA_DESTINATION, config, "spec.trafficPolicy.tls", *arguments)
        for index, settings in enumerate(policy.port_level_settings):
            if _names_no_roots(config, settings.tls):
                assert settings.tls is not None
                path = f"spec.trafficPolicy.portLevelSettings[{index}].tls"
                port = f"number:{settings.port.number}" if settings.port else ""
                arguments_of_port = name, namespace, settings.tls.mode.name, host, port
                yield found(codes.NO_CA_PORT, config, path, *arguments_of_port)


def _names_no_roots(config: Config, tls: api.ClientTlsSettings | None) -> bool:
    if tls is None or tls.mode not in _VERIFYING or tls.ca_certificates:
        return False
    return not ((tls.ca_cert_credential_name or tls.credential_name) and config.spec.workload_selector is not None)


def credentials(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Credentials that are not there."""
    picture = survey.picture
    known = {name for (_, name), secret in picture.secrets.items() if secret is not None}
    if survey.has_pods or not (known or picture.has_secrets):
        return
    for config in survey.of("DestinationRule"):
        policy = config.spec.traffic_policy
        if policy is None:
            continue
        settings = [("spec.trafficPolicy.tls", policy.tls)]
        for index, port in enumerate(policy.port_level_settings):
            settings.append((f"spec.trafficPolicy.portLevelSettings[{index}].tls", port.tls))
        for path, tls in settings:
            if tls is None:
                continue
            named = {"credentialName": tls.credential_name, "caCertCredentialName": tls.ca_cert_credential_name}
            for field, credential in named.items():
                # Roots may stand in a secret by themselves, under a name of this form.
                name = credential.rpartition("/")[2]
                if name and name not in known and f"{name}-cacert" not in known:
                    yield found(codes.NOT_FOUND, config, f"{path}.{field}", field, credential)


def shadowed(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Rules for a host that an older one of the same namespace has, too."""
    first: dict[tuple[str, str], Config] = {}
    default = survey.mesh.default_destination_rule_export_to
    names: defaultdict[ConfigRef, set[str]] = defaultdict(set)
    for config in survey.of("DestinationRule"):
        spec = config.spec
        if spec.workload_selector is not None:
            continue
        host = survey.full_host(spec.host, config.namespace)
        older = first.setdefault((config.namespace, host), config)
        had = names[config.namespace, host]
        if older is not config and _visibly_same(older, config, default):
            unused = (
                ["trafficPolicy"] if spec.traffic_policy is not None and older.spec.traffic_policy is not None else []
            )
            unused += [f"subset {s.name}" for s in spec.subsets if s.name in had]
            if unused:
                verb = f"{' and '.join(unused)} {'are' if len(unused) > 1 else 'is'}"
                yield found(codes.SHADOWED_RULE, config, "spec.host", older.key, older.origin, verb)
        had.update(subset.name for subset in spec.subsets)


ConfigRef = tuple[str, str]


def _visibly_same(older: Config, config: Config, default: list[str]) -> bool:
    exports = [export_namespaces(c.spec.export_to, default, c.namespace) for c in (older, config)]
    return bool(exports[0] == exports[1] or "*" in exports[0] or exports[0] & exports[1])


# -- ports of ServiceEntries that say no protocol


def protocols(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports with neither a protocol nor a name that begins with one."""
    for config in survey.of("ServiceEntry"):
        for index, port in enumerate(config.spec.ports):
            if not port.protocol and not says_protocol(port.name):
                path = f"spec.ports[{index}].{'name' if port.name else 'number'}"
                yield found(codes.PORT_WITHOUT_PROTOCOL, config, path, port.number, port.name)
