"""Objects of which one workload uses one: Sidecars and Telemetries that select none, or the same ones; egress hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage, MessageType
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, labels_text, listed
from mesh_pilot.explain.analysis.workloads import KnownWorkload
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.names import HIDDEN, PUBLIC

_LISTED = 50
"""Objects that are named in a message at most."""


def sidecars(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Sidecars."""
    configs = survey.of("Sidecar")
    ambient = {n.name for n in survey.of_kubernetes("Namespace") if _is_ambient(n)}
    general = [c for c in configs if not _labels(c)]
    for config in general:
        if config.namespace in ambient:
            yield found(codes.INEFFECTIVE_POLICY, config, "", "namespace is in ambient mode, the policy has no impact")
    remaining = [c for c in general if c.namespace not in ambient]
    yield from _several_general(remaining, codes.SIDECARS_WITHOUT_SELECTOR)
    yield from _selecting(survey, configs, "spec.workloadSelector.labels", codes.CONFLICTING_SIDECARS)


def _is_ambient(namespace: Config) -> bool:
    labels = namespace.labels
    if labels.get("istio-injection") == "enabled" or labels.get("istio.io/rev"):
        return False
    return labels.get("istio.io/dataplane-mode") == "ambient"


def egress_hosts(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Hosts that a Sidecar lists in a namespace that does not have them, or almost as they are."""
    owners: dict[str, set[str]] = defaultdict(set)
    for known in survey.hosts:
        owners[known.host].add(known.namespace)
    for config in survey.of("VirtualService"):
        for host in config.spec.hosts:
            owners[survey.full_host(host, config.namespace)].add(config.namespace)
    for config in survey.of("Sidecar"):
        for i, listener in enumerate(config.spec.egress):
            for j, written in enumerate(listener.hosts):
                place, _, host = written.lower().rpartition("/")
                if "*" not in host and (reason := _elsewhere(survey, owners, config, place, host)):
                    yield found(codes.FIELD_WITHOUT_EFFECT, config, f"spec.egress[{i}].hosts[{j}]", reason)


def egress_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports of egress listeners that no service of theirs has. HTTP_PROXY and listeners without a number take all."""
    everywhere = {port.number for known in survey.hosts for port in known.ports}
    for config in survey.of("Sidecar"):
        for index, listener in enumerate(config.spec.egress):
            port = listener.port
            if port is None or not port.number or Protocol.parse(port.protocol) is Protocol.HTTP_PROXY:
                continue
            services = [survey.hosts.named(host.lower().rpartition("/")[2]) for host in listener.hosts]
            # Files seldom have all services that a wildcard covers.
            if all(services):
                numbers = {each.number for of_host in services for known in of_host for each in known.ports}
            else:
                numbers = everywhere if survey.picture.is_whole else {port.number}
            if port.number not in numbers:
                reason = f"has no effect: no service among its hosts has port {port.number}; proxies get no listener"
                yield found(codes.FIELD_WITHOUT_EFFECT, config, f"spec.egress[{index}].port.number", reason)


def _elsewhere(survey: AnalysisContext, owners: Mapping[str, set[str]], config: Config, place: str, host: str) -> str:
    """Why a namespace has no such host, as far as that is certain."""
    namespace = config.namespace if place == "." else place
    there = owners.get(host, ())
    if namespace == HIDDEN or namespace in there or (there and namespace == PUBLIC):
        return ""
    if there:
        return f"has no effect: {host} is of namespace {', '.join(sorted(there))}"
    near = "" if survey.hosts.may_be_elsewhere(host) else survey.hosts.meant(host, namespace)
    return f"has no effect: no service has this host; did you mean {near}?" if near else ""


def telemetries(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Telemetries."""
    configs = [c for c in survey.of("Telemetry") if c.spec.target_ref is None and not c.spec.target_refs]
    yield from _several_general([c for c in configs if c.spec.selector is None], codes.TELEMETRIES_WITHOUT_SELECTOR)
    yield from _selecting(survey, configs, "spec.selector.matchLabels", codes.CONFLICTING_TELEMETRIES)


def _labels(config: Config) -> Mapping[str, str]:
    selector = getattr(config.spec, "workload_selector", None)
    if selector is not None:
        labels: Mapping[str, str] = selector.labels
        return labels
    selector = getattr(config.spec, "selector", None)
    return selector.match_labels if selector is not None else {}


def _several_general(configs: list[Config], type: MessageType) -> Iterator[AnalysisMessage]:
    """Several objects of a namespace without a selector."""
    by_namespace: dict[str, list[Config]] = {}
    for config in configs:
        by_namespace.setdefault(config.namespace, []).append(config)
    for namespace, several in by_namespace.items():
        if len(several) > 1:
            names, fix = _names(several), _oldest(several)
            for config in several:
                yield found(type, config, "", names, namespace, fix=fix)


def _selecting(
    survey: AnalysisContext, configs: list[Config] | tuple[Config, ...], path: str, type: MessageType
) -> Iterator[AnalysisMessage]:
    """Objects that select no workload, and those that select the same one."""
    # Two ways to be in conflict: known workloads that several select, and equal selectors where no workload is known. A
    # pair is told once, by the first of them.
    by_workload: dict[WorkloadKey, list[Config]] = {}
    ambient: dict[ConfigKey, Config] = {}
    selecting = [config for config in configs if _labels(config)]
    same: dict[tuple[str, str], list[Config]] = {}
    for config in selecting:
        labels = _labels(config)
        same.setdefault((config.namespace, labels_text(labels)), []).append(config)
        workloads = survey.workloads.matching(config.namespace, labels)
        if not workloads and survey.knows_clients:
            yield found(codes.NOT_FOUND, config, path, "selector", labels_text(labels))
        for key, workload in {_key(workload): workload for workload in workloads}.items():
            if workload.is_ambient:
                ambient[config.key] = config
            else:
                by_workload.setdefault(key, []).append(config)
    for config in ambient.values():
        if config.key.kind == "Sidecar":
            reason = "selected workload is in ambient mode, the policy has no impact"
            yield found(codes.INEFFECTIVE_POLICY, config, "", reason)
    told: set[ConfigKey] = set()
    for (namespace, name, _), several in by_workload.items():
        if len(several) > 1 and not all(config.key in told for config in several):
            yield from _conflict(type, several, namespace, name, told)
    for (namespace, text), several in same.items():
        if len(several) > 1 and not all(config.key in told for config in several):
            yield from _conflict(type, several, namespace, f"{text} (any)", told)


def _conflict(
    type: MessageType, several: list[Config], namespace: str, workload: str, told: set[ConfigKey]
) -> Iterator[AnalysisMessage]:
    names = _names(several)
    fix = "" if type is codes.CONFLICTING_TELEMETRIES else _oldest(several)
    for config in several:
        if config.key not in told:
            told.add(config.key)
            yield found(type, config, "", names, namespace, workload, fix=fix)


def _oldest(several: list[Config]) -> str:
    oldest = min(several, key=lambda config: config.order)
    return f"Only {oldest.key} ({oldest.origin}) is used; merge them, or narrow a selector."


def _names(several: list[Config]) -> str:
    return listed(sorted(config.name for config in several[:_LISTED]))


WorkloadKey = tuple[str, str, frozenset[tuple[str, str]]]


def _key(workload: KnownWorkload) -> WorkloadKey:
    """The key of a workload: one address may have several, each with its own labels."""
    return (workload.namespace, workload.name, frozenset(workload.labels.items()))


def providers(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Telemetries with access logs without a provider, or with a deprecated one for traces."""
    defaults = survey.mesh.default_providers
    has_default = defaults is not None and bool(defaults.access_logging)
    lightstep = {p.name for p in survey.mesh.extension_providers if p.lightstep is not None}
    for config in survey.of("Telemetry"):
        for index, logging in enumerate(config.spec.access_logging):
            if not has_default and not logging.disabled and not logging.providers:
                path = f"spec.accessLogging[{index}]"
                yield found(codes.EMPTY_PROVIDERS, config, path, config.name, config.namespace)
        for i, tracing in enumerate(config.spec.tracing):
            for j, provider in enumerate(tracing.providers):
                if provider.name in lightstep:
                    which = f"The Lightstep provider {provider.name} is deprecated"
                    detail = f"{which}, please migrate to OpenTelemetry provider."
                    yield found(codes.DEPRECATED, config, f"spec.tracing[{i}].providers[{j}].name", detail)
