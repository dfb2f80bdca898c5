"""Policies and the ports of workloads: ports that only services have, and rules that close TCP ports as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers.policies import selector_of
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.explain.analysis.served_ports import ServedAt
from mesh_pilot.model.config import Config

_Action = security.AuthorizationPolicyAction
_LISTED = 10
"""Ports of workloads that a message names."""

_PORT = "destination.port"
_OF_REQUESTS = ("request.headers", "request.auth.")
"""Keys of conditions that only requests can meet begin so."""


def service_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports in policies that no selected workload listens on, but clients of its services use."""
    for kind in ("AuthorizationPolicy", "PeerAuthentication"):
        for config in survey.of(kind):
            served = _served(survey, config)
            if not served:
                continue
            listened = {port.number for port in served} | _other_listeners(survey, config)
            for path, number in _ports_in(config):
                elsewhere = {port.host: port.number for port in served if port.service_port == number}
                if number not in listened and elsewhere:
                    host, at = next(iter(elsewhere.items()))
                    yield found(codes.PORT_OF_SERVICE, config, path, number, host, at)
                elif number not in listened and kind == "AuthorizationPolicy" and survey.picture.proxies is not None:
                    others = sorted({port.number for port in served})[:_LISTED]
                    yield found(codes.PORT_OF_NOBODY, config, path, number, ", ".join(map(str, others)))


def _served(survey: AnalysisContext, config: Config) -> tuple[ServedAt, ...]:
    """The ports of the workloads that a policy selects; none for one that selects gateways of the Gateway API."""
    spec = config.spec
    if config.key.kind == "AuthorizationPolicy" and (spec.target_ref is not None or spec.target_refs):
        return ()
    namespace = "" if config.namespace == survey.root_namespace else config.namespace
    return survey.ports.of(namespace, selector_of(config))


def _other_listeners(survey: AnalysisContext, config: Config) -> set[int]:
    """Ports of gateways that a policy may select, and of the ingress of Sidecars."""
    labels = selector_of(config).items()
    gateways = (g for g in survey.of("Gateway") if labels <= g.spec.selector.items())
    servers = (server for gateway in gateways for server in gateway.spec.servers)
    ingress = (listener for sidecar in survey.of("Sidecar") for listener in sidecar.spec.ingress)
    return {each.port.number for each in (*servers, *ingress) if each.port is not None}


def _ports_in(config: Config) -> Iterator[tuple[str, int]]:
    """The ports that a policy names, each with its path."""
    if config.key.kind == "PeerAuthentication":
        yield from ((f"spec.portLevelMtls[{number}]", number) for number in config.spec.port_level_mtls)
        return
    for i, rule in enumerate(config.spec.rules):
        for j, operation in _operations(rule):
            for field, ports in (("ports", operation.ports), ("notPorts", operation.not_ports)):
                yield from _numbers(f"spec.rules[{i}].to[{j}].operation.{field}", ports)
        for j, condition in enumerate(rule.when):
            if condition.key == _PORT:
                for field, ports in (("values", condition.values), ("notValues", condition.not_values)):
                    yield from _numbers(f"spec.rules[{i}].when[{j}].{field}", ports)


def _operations(rule: security.Rule) -> Iterator[tuple[int, security.Operation]]:
    return ((j, to.operation) for j, to in enumerate(rule.to) if to.operation is not None)


def _numbers(path: str, texts: Sequence[str]) -> Iterator[tuple[str, int]]:
    yield from ((f"{path}[{k}]", int(text)) for k, text in enumerate(texts) if text.isdecimal())


# -- rules with conditions on requests, at ports that have no requests


def closed_tcp_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """DENY and CUSTOM rules that connections to TCP ports match, because they have no requests."""
    asks = {p.name for p in survey.mesh.extension_providers if p.envoy_ext_authz_grpc is not None}
    for config in survey.of("AuthorizationPolicy"):
        spec: security.AuthorizationPolicy = config.spec
        is_custom = spec.action is _Action.CUSTOM and spec.provider is not None and spec.provider.name in asks
        if spec.action is not _Action.DENY and not is_custom:
            continue
        # ALLOW is not a danger: what it cannot match on a connection stays closed, as the user expects of it.
        tcp = {port.number: port for port in _served(survey, config) if port.protocol.is_tcp}
        for index, rule in enumerate(spec.rules if tcp else ()):
            path, ports = _closed(rule, f"spec.rules[{index}]", tcp)
            if path and ports:
                names = ", ".join(f"{number} ({tcp[number].host})" for number in sorted(ports))
                effect = "passed to the provider" if is_custom else "denied"
                yield found(codes.TCP_PORTS_CLOSED, config, path, names, effect)


def _closed(rule: security.Rule, path: str, tcp: Mapping[int, ServedAt]) -> tuple[str, set[int]]:
    """The first field of a rule that only requests can meet, and the TCP ports at which it is left out."""
    of_rule = next(_request_fields_of_callers(rule, path), "")
    ports = {number for number in tcp if _may_be(rule.when, number)}
    operations = list(_operations(rule))
    if not operations:
        return of_rule, ports
    for j, operation in operations:
        field = next(_request_fields(operation, f"{path}.to[{j}].operation"), of_rule)
        reached = {p for p in ports if _includes(operation.ports, operation.not_ports, p)}
        if field and reached:
            return field, reached
    return "", set()


def _request_fields(operation: security.Operation, path: str) -> Iterator[str]:
    for name in ("hosts", "methods", "paths"):
        if getattr(operation, name):
            yield f"{path}.{name}"
        if getattr(operation, f"not_{name}"):
            yield f"{path}.not{name.title()}"


def _request_fields_of_callers(rule: security.Rule, path: str) -> Iterator[str]:
    for j, source in enumerate(origin.source for origin in rule.from_):
        if source is not None and source.request_principals:
            yield f"{path}.from[{j}].source.requestPrincipals"
        if source is not None and source.not_request_principals:
            yield f"{path}.from[{j}].source.notRequestPrincipals"
    for j, condition in enumerate(rule.when):
        if condition.key.startswith(_OF_REQUESTS):
            yield f"{path}.when[{j}].key"


def _may_be(conditions: Iterable[security.Condition], port: int) -> bool:
    return all(_includes(c.values, c.not_values, port) for c in conditions if c.key == _PORT)


def _includes(ports: Sequence[str], not_ports: Sequence[str], port: int) -> bool:
    return (not ports or str(port) in ports) and str(port) not in not_ports
