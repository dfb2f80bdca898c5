"""Rules of VirtualServices that apply at no port: of another kind than the ports, or for a port that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name
from mesh_pilot.mesh.listeners.gateway_servers import ServerKind, server_kind
from mesh_pilot.mesh.virtual_hosts.host_candidates import HTTP_PORT
from mesh_pilot.model.config import Config
from mesh_pilot.model.hosts import host_matches
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.names import MESH_GATEWAY, full_gateway

_FOR: Mapping[str, str] = MappingProxyType(
    {
        "http": "HTTP, and HTTPS that a Gateway terminates",
        "tls": "TLS that passes through",
        "tcp": "TCP, and TLS that a Gateway terminates",
    }
)
_OF_SERVER: Mapping[ServerKind, str] = MappingProxyType(
    {
        ServerKind.HTTP: "http",
        ServerKind.HTTPS: "http",
        ServerKind.TCP: "tcp",
        ServerKind.TLS: "tcp",
        ServerKind.PASSTHROUGH: "tls",
    }
)


@attrs.frozen
class _Port:
    """A port at which proxies look for rules."""

    gateway: str
    """``mesh``, or the full name of the Gateway."""
    number: int
    kinds: tuple[str, ...]
    """Kinds of rules that apply there."""
    text: str


def without_effect(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Kinds of rules that none of the ports takes, and rules whose matches name no port that is there."""
    everywhere = _everywhere(survey)
    for config in survey.of("VirtualService"):
        spec = config.spec
        if ports := _ports(survey, config, everywhere):
            yield from _unused(survey, config, "http", spec.http, ports)
            yield from _unused(survey, config, "tls", spec.tls, ports)
            yield from _unused(survey, config, "tcp", spec.tcp, ports)


def _unused(
    survey: AnalysisContext, config: Config, kind: str, rules: Sequence[Any], ports: Sequence[_Port]
) -> Iterator[AnalysisMessage]:
    """The rules of one kind that apply at none of the ports."""
    taking = [port for port in ports if kind in port.kinds]
    if rules and not taking:
        reason = f"has no effect at Envoys: {kind} rules are for {_FOR[kind]}, but there is only {_listed(ports)}"
        others = sorted({kind for port in ports for kind in port.kinds})
        fix = f"Write {' or '.join(others)} rules." if others else ""
        yield found(codes.FIELD_WITHOUT_EFFECT, config, f"spec.{kind}", reason, fix=fix)
    for index, rule in enumerate(rules if taking else ()):
        if rule.match and not any(_applies(survey, config, match, taking) for match in rule.match):
            reason = f"has no effect at Envoys: no match names a port and gateways that are there: {_listed(taking)}"
            yield found(codes.FIELD_WITHOUT_EFFECT, config, f"spec.{kind}[{index}].match", reason)


def _listed(ports: Sequence[_Port]) -> str:
    return ", ".join(dict.fromkeys(port.text for port in ports))


def _applies(survey: AnalysisContext, config: Config, match: Any, ports: Sequence[_Port]) -> bool:
    names = {full_gateway(name, config.namespace, survey.picture.domain) for name in match.gateways}
    return any(match.port in (0, port.number) and (not names or port.gateway in names) for port in ports)


def _everywhere(survey: AnalysisContext) -> list[_Port]:
    """Ports of sidecars at which any host may have rules: 80, if a service has it, and those of Sidecars' listeners."""
    ports: list[_Port] = []
    if any(port.number == HTTP_PORT for known in survey.hosts for port in known.ports):
        ports.append(_of_protocol(Protocol.HTTP, HTTP_PORT, "the mesh"))
    for sidecar in survey.of("Sidecar"):
        for listener in sidecar.spec.egress:
            if listener.port is not None:
                protocol = Protocol.parse(listener.port.protocol)
                ports.append(_of_protocol(protocol, listener.port.number, full_name(sidecar)))
    return list({(port.number, port.kinds): port for port in ports}.values())


def _ports(survey: AnalysisContext, config: Config, everywhere: Sequence[_Port]) -> list[_Port]:
    """The ports of a VirtualService's hosts and Gateways; empty if not all of them are known, or it is a delegate."""
    ports: list[_Port] = []
    for name in config.spec.gateways or [MESH_GATEWAY] if config.spec.hosts else ():
        if name == MESH_GATEWAY:
            of_name = _of_services(survey, config)
            of_name += everywhere if of_name else ()
        else:
            namespace, _, plain = full_gateway(name, config.namespace, survey.picture.domain).rpartition("/")
            gateway = survey.picture.find("Gateway", namespace, plain)
            of_name = list(_of_gateway(gateway, config.spec.hosts)) if gateway is not None else []
        if not of_name:
            return []
        ports += of_name
    return ports


def _of_services(survey: AnalysisContext, config: Config) -> list[_Port]:
    ports: list[_Port] = []
    for name in config.spec.hosts:
        host = survey.full_host(name, config.namespace)
        services = [] if "*" in host or survey.hosts.may_be_elsewhere(host) else survey.hosts.named(host)
        # A Service of Kubernetes says its protocols in ways that only its registry reads.
        if not services or any(each.config and each.config.key.kind == "Service" for each in services):
            return []
        for service in services:
            for port in service.ports:
                protocol = Protocol.parse(port.protocol or port.name.split("-")[0])
                ports.append(_of_protocol(protocol, port.number, host))
    return ports


def _of_protocol(protocol: Protocol, number: int, owner: str) -> _Port:
    kinds: tuple[str, ...] = ("tcp",)
    if protocol is Protocol.AUTO:
        kinds = ("http", "tcp")
    elif protocol.is_http:
        kinds = ("http",)
    elif protocol.is_tls:
        kinds = ("tls",)
    return _Port(MESH_GATEWAY, number, kinds, f"{number} of {owner} ({protocol})")


def _of_gateway(gateway: Config, hosts: Sequence[str]) -> Iterator[_Port]:
    """The ports of a Gateway whose servers have one of the hosts."""
    server: api.Server
    for server in gateway.spec.servers:
        patterns = [host.rpartition("/")[2].lower() for host in server.hosts]
        if server.port is None or not any(host_matches(p, h.lower()) for p in patterns for h in hosts):
            continue
        kind = server_kind(Protocol.parse(server.port.protocol), server.tls)
        kinds = (_OF_SERVER[kind],) if kind in _OF_SERVER else ()
        text = f"{server.port.number} of {full_name(gateway)} ({kind})"
        yield _Port(full_name(gateway), server.port.number, kinds, text)
