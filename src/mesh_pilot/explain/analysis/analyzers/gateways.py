"""Gateways: their proxies, ports and certificates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import attrs
from cryptography import x509

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.hosts import NearNames
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name, labels_text
from mesh_pilot.mesh.listeners.gateway_servers import server_kind
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Secret
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.service import Protocol
from mesh_pilot.sources.acme.wanted import name_of


def proxies(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Gateways that no proxy has: no Pod in Kubernetes, no connected proxy elsewhere."""
    for gateway in survey.of("Gateway"):
        selector = gateway.spec.selector
        text = labels_text(selector)
        matching = survey.workloads.matching("", selector)
        if survey.has_pods and not matching:
            yield found(codes.NOT_FOUND, gateway, "spec.selector", "selector", text)
        elif survey.picture.proxies is not None and not any(w.type is NodeType.ROUTER for w in matching):
            yield found(codes.GATEWAY_WITHOUT_PROXY, gateway, "spec.selector", text or "(any)")


def service_ports(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports of Gateways that the Services of Kubernetes before their Pods do not have."""
    if not survey.has_pods:
        return
    services = survey.of_kubernetes("Service")
    for gateway in survey.of("Gateway"):
        pods = [w for w in survey.workloads.matching("", gateway.spec.selector) if w.is_pod]
        if not pods:
            continue
        ports = {
            port for pod in pods for service in services for port in _ports_before(service, pod.namespace, pod.labels)
        }
        for index, server in enumerate(gateway.spec.servers):
            if server.port is not None and server.port.number not in ports:
                path = f"spec.servers[{index}].port.number"
                text = labels_text(gateway.spec.selector)
                yield found(codes.PORT_NOT_ON_SERVICE, gateway, path, server.port.number, text)


def _ports_before(service: Config, namespace: str, labels: Mapping[str, str]) -> Iterator[int]:
    """The ports, and the ports of Pods behind them, of a Service that selects a Pod."""
    selector = as_object(service.spec, "spec", "selector")
    if service.namespace != namespace or not selector.items() <= labels.items():
        return
    for port in as_objects(service.spec, "spec", "ports"):
        if port.get("protocol", "TCP") != "TCP":
            continue
        number, target = port.get("port"), port.get("targetPort")
        for value in (number, target):
            if isinstance(value, int):
                yield value
            elif isinstance(value, str) and value.isdigit():
                yield int(value)


_LISTED = 20
"""Gateways that are named in a message, or compared, at most."""


@attrs.frozen
class PlacedServer:
    """A server of a Gateway, and where it stands."""

    gateway: Config
    index: int
    server: api.Server

    @property
    def path(self) -> str:
        return f"spec.servers[{self.index}]"


def _servers(survey: AnalysisContext) -> dict[int, list[PlacedServer]]:
    """All servers by port."""
    by_port: dict[int, list[PlacedServer]] = defaultdict(list)
    for gateway in survey.of("Gateway"):
        for index, server in enumerate(gateway.spec.servers):
            if server.port is not None:
                by_port[server.port.number].append(PlacedServer(gateway, index, server))
    return by_port


def conflicts(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Gateways of the same proxies with the same port: the same hosts, or protocols that exclude each other."""
    for port, placed in _servers(survey).items():
        claims: Claims = defaultdict(dict)
        for one in placed:
            for host in one.server.hosts:
                for label in (*one.gateway.spec.selector.items(), _ANY):
                    claims[host.rpartition("/")[2].lower(), one.server.bind, label][one.path, one.gateway.key] = one
        for one in placed:
            yield from _same_hosts(survey, port, one, claims)
        yield from _protocols(survey, port, placed)


Claims = dict[tuple[str, str, tuple[str, str]], dict[tuple[str, ConfigKey], PlacedServer]]
"""Servers by host, bind address and a label of their selector."""

_ANY = ("", "")


def _same_hosts(survey: AnalysisContext, port: int, one: PlacedServer, claims: Claims) -> Iterator[AnalysisMessage]:
    others: dict[str, None] = {}
    selector = one.gateway.spec.selector
    for host in one.server.hosts:
        scope, _, name = host.lower().rpartition("/")
        candidates = {
            key: other
            for label in selector.items() or (_ANY,)
            for key, other in claims.get((name, one.server.bind, label), {}).items()
        }
        for other in candidates.values():
            if full_name(other.gateway) not in others and _collide(survey, scope, name, one, other):
                others[full_name(other.gateway)] = None
            if len(others) == _LISTED:
                break
    if others:
        hosts = ",".join(one.server.hosts)
        names = ",".join(sorted(others))
        yield found(codes.CONFLICTING_GATEWAYS, one.gateway, one.path, names, labels_text(selector), port, hosts)


def _collide(survey: AnalysisContext, scope: str, name: str, one: PlacedServer, other: PlacedServer) -> bool:
    """True if the same proxies cannot tell a host of one server from the same host of another."""
    # By a name in TLS, one of the servers is left out, whatever their namespaces; plain ones of a Gateway are merged.
    if _by_names(one, other):
        return other is not one and _share_proxies(survey, one.gateway, other.gateway)
    if other.gateway.key == one.gateway.key:
        return False
    own = _scope(scope, one.gateway)
    theirs = {
        _scope(host.rpartition("/")[0], other.gateway)
        for host in other.server.hosts
        if host.rpartition("/")[2].lower() == name
    }
    return (own in theirs or "*" in theirs or own == "*") and _share_proxies(survey, one.gateway, other.gateway)


def _by_names(one: PlacedServer, other: PlacedServer) -> bool:
    """True if Envoy tells connections of both by the name in their TLS, which says no namespace."""
    servers = (one.server, other.server)
    return all(s.port and not server_kind(Protocol.parse(s.port.protocol), s.tls).is_plain for s in servers)


def _scope(scope: str, gateway: Config) -> str:
    return gateway.namespace if scope == "." else scope or "*"


def _share_proxies(survey: AnalysisContext, one: Config, other: Config) -> bool:
    """True if both select the same proxies: by the same labels, or as a workload shows that is known."""
    a, b = one.spec.selector, other.spec.selector
    if a == b:
        return True
    if not (a.items() <= b.items() or b.items() <= a.items()):
        return False
    wider, narrower = (a, b) if a.items() <= b.items() else (b, a)
    return any(wider.items() <= w.labels.items() for w in survey.workloads.matching("", narrower))


_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("HTTP", "HTTP2", "GRPC", "GRPC-WEB"), "plain HTTP"),
    **dict.fromkeys(("HTTPS", "TLS"), "TLS"),
    **dict.fromkeys(("TCP", "MONGO", "REDIS", "MYSQL"), "plain TCP"),
}


def _protocols(survey: AnalysisContext, port: int, placed: Iterable[PlacedServer]) -> Iterator[AnalysisMessage]:
    """Servers whose protocol another Gateway's server excludes; one message for each that is not the oldest."""
    first: dict[tuple[frozenset[tuple[str, str]], str], PlacedServer] = {}
    for one in placed:
        at = frozenset(one.gateway.spec.selector.items()), one.server.bind
        oldest = first.setdefault(at, one)
        mine, theirs = _group(one.server), _group(oldest.server)
        if mine and theirs and mine != theirs and one.gateway.key != oldest.gateway.key:
            arguments = port, mine, theirs, str(oldest.gateway.key)
            yield found(codes.GATEWAY_PORT_PROTOCOLS, one.gateway, f"{one.path}.port.protocol", *arguments)


def _group(server: api.Server) -> str:
    return _GROUPS.get(server.port.protocol.upper(), "") if server.port is not None else ""


def certificates(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Gateways of the same proxies that present the same certificate."""
    by_certificate: dict[tuple[str, ...], list[Config]] = defaultdict(list)
    for gateway in survey.of("Gateway"):
        for server in gateway.spec.servers:
            if server.tls is not None and (key := _certificate(server.tls)):
                by_certificate[key].append(gateway)
    for gateways in by_certificate.values():
        distinct = list({gateway.key: gateway for gateway in gateways}.values())
        for gateway in distinct:
            for other in distinct[:_LISTED]:
                if other is not gateway and gateway.spec.selector.items() <= other.spec.selector.items():
                    names = f"[{full_name(gateway)} {full_name(other)}]"
                    yield found(codes.DUPLICATE_CERTIFICATE, gateway, "", names)


def _certificate(tls: api.ServerTlsSettings) -> tuple[str, ...]:
    if tls.credential_name:
        return (tls.credential_name,)
    return (tls.server_certificate, tls.private_key) if tls.server_certificate and tls.private_key else ()


def credentials(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Credentials of Gateways that are not there, or not good."""
    picture = survey.picture
    broken = {rejected.key[1:] for rejected in picture.rejected if rejected.key and rejected.key[0] == "secret"}
    broken |= {(config.namespace, config.name) for config in picture.of_kubernetes("Secret")}
    known = {(namespace, name) for (namespace, name), secret in picture.secrets.items() if secret is not None}
    # Silence where nothing could be known: of files without secrets, and of gateways none of whose Pods is in the dump.
    # A credential that is there and bad is another message than one that is missing.
    if not (known or broken or picture.has_secrets):
        return
    near_names = NearNames({plain for _, plain in known})
    acme = picture.mesh.acme
    ordered = {name_of(each, survey.root_namespace) for each in (acme.credentials if acme is not None else ())}
    for gateway in survey.of("Gateway"):
        workloads = [w for w in survey.workloads.matching("", gateway.spec.selector) if w.is_pod or w.type]
        namespaces = list(dict.fromkeys(w.namespace for w in workloads)) or [gateway.namespace]
        if survey.has_pods and not workloads:
            continue
        for index, server in enumerate(gateway.spec.servers):
            for path, name in _credentials(server.tls, f"spec.servers[{index}].tls"):
                places = _places(name, namespaces, survey)
                if any(place in broken for place in places):
                    yield found(codes.INVALID_CREDENTIAL, gateway, path, gateway.name, namespaces[0])
                elif ended := _expired(picture.secrets.get(next((p for p in places if p in known), ("", "")))):
                    fix = f"Renew {name}: its certificate expired at {ended:%F %T} UTC."
                    yield found(codes.INVALID_CREDENTIAL, gateway, path, gateway.name, namespaces[0], fix=fix)
                elif not any(place in known or place in ordered for place in places):
                    close = near_names.nearest(name)
                    add = f"Add a Secret or a folder of --secrets-dir with this name, for namespace {namespaces[0]}."
                    fix = f"Did you mean {close}?" if close else add
                    yield found(codes.NOT_FOUND, gateway, path, "credentialName", name, fix=fix)


def _expired(secret: Secret | None) -> datetime | None:
    """The time at which the certificate of a credential expired; None if it has not, or cannot be read."""
    if secret is None or not secret.certificate_chain:
        return None
    try:
        ends = x509.load_pem_x509_certificate(secret.certificate_chain).not_valid_after_utc
    except ValueError:
        return None
    return ends if ends < datetime.now(UTC) else None


def _credentials(tls: api.ServerTlsSettings | None, path: str) -> Iterator[tuple[str, str]]:
    if tls is not None:
        if tls.credential_name:
            yield f"{path}.credentialName", tls.credential_name
        for index, name in enumerate(tls.credential_names):
            yield f"{path}.credentialNames[{index}]", name


def _places(name: str, namespaces: Iterable[str], survey: AnalysisContext) -> list[tuple[str, str]]:
    """Where a credential may be, as the control plane looks for it."""
    scope, slash, plain = name.removeprefix("kubernetes://").rpartition("/")
    if slash:
        return [(scope, plain)]
    shared = [] if survey.has_pods else [(survey.root_namespace, plain), ("", plain)]
    return [*((namespace, plain) for namespace in namespaces), *shared]
