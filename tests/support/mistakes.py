"""Mistakes that a real Envoy refuses, as objects past validation.

Some of them our validation or our translators may come to know: they are to be refused or rendered otherwise then. The
others no control plane can know, for they depend on the extensions of a build, on its files, or on a script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.model.events import Item, MeshConfigValue
from mesh_pilot.model.proxy import NodeType
from tests.support.manifests import at, manifest, routes, rule, service
from tests.support.patching import HCM, LUA, envoy_filter, in_filter, in_http_filter, patch
from tests.support.quarantined import BAD, Quarantined, bad_route, unchecked

TO_BAD = f"route: [{{destination: {{host: {BAD}}}}}]"
BROKEN_LUA = {"@type": LUA, "inline_code": "function envoy_on_response(h"}
ELSEWHERE = {
    "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
    "type_url": "type.googleapis.com/another.build.Extension",
    "value": {"a": 1},
}
"""The configuration of an extension that this build of Envoy does not have."""

RULES = {
    "formatter in a header": f"- {{headers: {{response: {{set: {{x: '%FOO%'}}}}}}, {TO_BAD}}}",
    "direct response of 5 KB": f"- {{directResponse: {{status: 200, body: {{string: '{'x' * 5000}'}}}}}}",
    "regular expression": f"- {{match: [{{uri: {{regex: '('}}}}], {TO_BAD}}}",
    "NUL in a header's name": f'- {{headers: {{request: {{set: {{"x\\0y": a}}}}}}, {TO_BAD}}}',
    "timeout of a thousand years": f"- {{timeout: 9000000h, {TO_BAD}}}",
    "backoff of a thousand years": f"- {{retries: {{attempts: 2, backoff: 9000000h}}, {TO_BAD}}}",
    "sum of weights": f"- route: [{', '.join([f'{{destination: {{host: {BAD}}}, weight: 2147483647}}'] * 3)}]",
    "status of a fault": f"- {{fault: {{abort: {{httpStatus: 1000, percentage: {{value: 1}}}}}}, {TO_BAD}}}",
    "regular expression of an origin": f"- {{corsPolicy: {{allowOrigins: [{{regex: '['}}]}}, {TO_BAD}}}",
    "newline in a path": f'- {{rewrite: {{uri: "/a\\nb"}}, {TO_BAD}}}',
}
"""HTTP rules of a VirtualService that was fine before."""

POLICIES = {
    "ring size": "loadBalancer: {consistentHash: {httpHeaderName: x, minimumRingSize: 9000000}}",
    "interval of 0": "outlierDetection: {consecutive5xxErrors: 1, interval: 0s}",
    "SNI of 300 characters": f"tls: {{mode: SIMPLE, sni: {'s' * 300}}}",
    "connect timeout of 0": "connectionPool: {tcp: {connectTimeout: 0s}}",
    "idle timeout of 500 years": "connectionPool: {http: {idleTimeout: 15576000000s}}",
}
"""Traffic policies of a DestinationRule."""

KEY_SETS = {
    "empty key set": '{"keys": []}',
    "key without numbers": '{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}',
}


@attrs.frozen
class Mistake:
    name: str
    items: list[Item]
    mended: list[Item] = attrs.field(factory=list)
    """The items when the mistake is over; it deletes those of other keys."""
    is_alone: bool = False
    """The good tenant's first edit comes after it. Envoy refuses all endpoints that come in one response with bad ones,
    and may have routes to them by then, because routes do not wait until it has accepted endpoints."""


def mistakes(world: Quarantined) -> Iterator[Mistake]:
    """Those for this kind of proxy."""
    fine: list[Item] = [*unchecked(bad_route("bad-1"))]
    yield from (Mistake(name, [*unchecked(bad_route("", http))], fine) for name, http in RULES.items())
    yield from (_written(name, rule(BAD, policy)) for name, policy in POLICIES.items())
    endpoint = {"address": "not an IP", "ports": {"main": 1}}
    yield Mistake("endpoint's address", [*unchecked(service("ep.test", world.port, endpoint))], is_alone=True)
    yield _written("CEL expression", telemetry({"filter": {"expression": "x('"}}))
    yield _written("script that fails when it is loaded", extension("none_of_such_a_name()"))
    yield Mistake("access log format of the mesh", [mesh_settings("%FOO%")], [mesh_settings("")])
    yield from _filters(world)
    if world.kind is NodeType.ROUTER:
        yield from _of_gateways(world)


def formatter_in_header() -> str:
    """The VirtualService with the header value ``%FOO%``."""
    return bad_route("", RULES["formatter in a header"])


def broken_script(world: Quarantined) -> str:
    """An EnvoyFilter with a script that Lua does not compile."""
    inserted = {"name": "bad", "typed_config": BROKEN_LUA}
    return envoy_filter(patch("HTTP_FILTER", "INSERT_BEFORE", inserted, **_before_router(world)), name="mistake")


def telemetry(logging: dict[str, Any]) -> str:
    text = manifest("Telemetry", "bad", {"accessLogging": [{"providers": [{"name": "envoy"}], **logging}]})
    return text.replace("networking.istio.io/v1", "telemetry.istio.io/v1")


def extension(script: str) -> str:
    text = manifest("TrafficExtension", "bad", {"lua": {"inlineCode": script}})
    return text.replace("networking.istio.io/v1", "extensions.istio.io/v1alpha1")


def mesh_settings(log_format: str) -> MeshConfigValue:
    mesh: MeshConfig = default_mesh()
    if log_format:
        mesh.access_log_file, mesh.access_log_format = "/dev/null", log_format
    return MeshConfigValue(mesh)


def _written(name: str, text: str) -> Mistake:
    return Mistake(name, [*unchecked(text)])


def _context(world: Quarantined) -> str:
    return "GATEWAY" if world.kind is NodeType.ROUTER else "SIDECAR_OUTBOUND"


def _before_router(world: Quarantined) -> dict[str, Any]:
    listener = in_http_filter("envoy.filters.http.router", portNumber=world.port)
    return {"context": _context(world), "listener": listener}


def _filters(world: Quarantined) -> Iterator[Mistake]:
    """EnvoyFilters."""

    def filters(name: str, *patches: dict[str, Any], namespace: str = "shop") -> Mistake:
        return _written(name, envoy_filter(*patches, name="mistake", namespace=namespace))

    def insert(config: dict[str, Any]) -> dict[str, Any]:
        inserted = {"name": "bad", "typed_config": config}
        return patch("HTTP_FILTER", "INSERT_BEFORE", inserted, **_before_router(world))

    def listener(**fields: Any) -> dict[str, Any]:
        address = {"socket_address": {"address": "127.0.0.1", "port_value": world.spare_port}}
        return patch("LISTENER", "ADD", {"name": "bad", "address": address, **fields}, context=context)

    context = _context(world)
    of_bad = {"context": context, "cluster": {"service": BAD}}
    of_table = {"context": context, "routeConfiguration": {"portNumber": world.port}}
    in_connection = {"context": context, "listener": in_filter(HCM, portNumber=world.port)}
    authority = {"validation_context": {"trusted_ca": {"filename": "/no/such/ca.pem"}}}
    tls_type = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    tls = {"@type": tls_type, "common_tls_context": authority}
    discovered = {"config_source": {"ads": {}, "resource_api_version": "V3"}, "type_urls": [LUA]}
    discovered["default_config"] = {"@type": LUA, "inline_code": ""}
    fetched = {"name": "fetched", "config_discovery": discovered}

    yield filters("script", insert(BROKEN_LUA))
    yield filters("script for the whole mesh", insert(BROKEN_LUA), namespace="istio-system")
    yield filters("HTTP filter of another build", insert(ELSEWHERE))
    yield filters("filter without a type", insert({"@type": {}}))
    elsewhere = {"name": "bad", "typed_config": ELSEWHERE}
    yield filters(
        "network filter of another build", patch("NETWORK_FILTER", "INSERT_BEFORE", elsewhere, **in_connection)
    )
    yield filters("listener without chains", listener())
    yield filters("listener's address", listener(address={"socket_address": {"address": "no IP", "port_value": 1}}))
    yield filters("connect timeout in a cluster", patch("CLUSTER", "MERGE", {"connect_timeout": "0s"}, **of_bad))
    socket = {"name": "envoy.transport_sockets.tls", "typed_config": tls}
    yield filters("file of a cluster", patch("CLUSTER", "MERGE", {"transport_socket": socket}, **of_bad))
    options = {"typed_per_filter_config": {"bad": ELSEWHERE}}
    vhost = {"context": context, "routeConfiguration": {"vhost": {"name": f"{BAD}:{world.port}"}}}
    yield filters("options of another build in a route", patch("HTTP_ROUTE", "MERGE", options, **vhost))
    twice = {"name": "bad", "domains": [BAD]}
    yield filters("domain twice", patch("VIRTUAL_HOST", "ADD", twice, **of_table))
    added = {"request_headers_to_add": [{"header": {"key": "x", "value": "%FOO%"}}]}
    yield filters("formatter in a route table", patch("ROUTE_CONFIGURATION", "MERGE", added, **of_table))
    yield filters(
        "script that is discovered",
        patch("HTTP_FILTER", "INSERT_BEFORE", fetched, **_before_router(world)),
        patch("EXTENSION_CONFIG", "ADD", {"name": "fetched", "typed_config": BROKEN_LUA}),
    )


def _of_gateways(world: Quarantined) -> Iterator[Mistake]:
    def server(name: str, protocol: str, hosts: list[str], **fields: Any) -> Mistake:
        port = {"number": world.spare_port, "name": "bad", "protocol": protocol}
        servers = [{"port": port, "hosts": hosts, **fields}]
        return _written(name, manifest("Gateway", "bad", {"selector": {"istio": "edge"}, "servers": servers}))

    twice = (("evil.test", "evil-1"), ("EVIL.test", "evil-2"))
    text = "".join(
        routes(host, f"- {{{TO_BAD}}}", gateways=("edge",), name=name)
        + service(host, world.port, at(world.backend), name=name)
        for host, name in twice
    )
    yield _written("hosts that differ in case", text)
    tls = {"mode": "SIMPLE", "credentialName": "cred"}
    yield server("server's hosts that differ in case", "HTTPS", ["EVIL.test", "evil.test"], tls=tls)
    yield server("bind", "HTTP", ["*"], bind="not an IP")
    for name, keys in KEY_SETS.items():
        rules = [{"issuer": "issuer.test", "jwks": keys}]
        yield _written(name, manifest("RequestAuthentication", "bad", {"jwtRules": rules}))
