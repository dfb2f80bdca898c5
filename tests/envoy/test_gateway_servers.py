"""Servers of Gateways on a router: who shares a listener, who has which route table, and who has no place."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.mesh.listeners.gateway_servers import UNTRANSLATED_LABEL, MergedServers, merged_servers, target_ports
from tests.support.routing import config, router, service, target
from tests.support.worlds import world_of

CERTIFICATE = "serverCertificate: /c, privateKey: /k"


def gateway(name: str, *servers: str, namespace: str = "edge", age: int = 0, selector: str = "istio: edge") -> str:
    listed = ", ".join(servers)
    return config("Gateway", name, f"{{selector: {{{selector}}}, servers: [{listed}]}}", namespace=namespace, age=age)


def server(
    number: int, protocol: str = "HTTP", hosts: str = "'*'", *, name: str = "", tls: str = "", bind: str = ""
) -> str:
    more = (f", tls: {{{tls}}}" if tls else "") + (f", bind: {bind}" if bind else "")
    name = name or f"{protocol.lower()}-{number}"
    return f"{{port: {{number: {number}, name: {name}, protocol: {protocol}}}, hosts: [{hosts}]{more}}}"


def https(number: int, hosts: str = "'*'", **given: str) -> str:
    return server(number, "HTTPS", hosts, tls=f"mode: SIMPLE, {CERTIFICATE}", **given)


def merged(text: str, **metadata: Any) -> MergedServers:
    world = world_of(text)
    workload = target(world, router(**metadata)).workload
    return merged_servers(world.view, workload.scope, target_ports(world.view, workload))


def tables(found: MergedServers) -> dict[str, list[str]]:
    """Route tables, with the Gateways and ports of the servers in them."""
    return {name: [f"{s.gateway_name}:{s.port}" for s in servers] for name, servers in found.tables.items()}


def reasons(found: MergedServers) -> list[str]:
    return [skipped.reason for skipped in found.skipped]


def test_http_servers_of_all_gateways_on_a_port_share_a_listener_and_a_table() -> None:
    found = merged(gateway("young", server(80), age=1) + gateway("old", server(80, "HTTP2"), namespace="a"))
    assert tables(found) == {"http.80": ["a/old:80", "edge/young:80"]}
    (listener,) = found.listeners
    assert (listener.bind, listener.port, len(listener.servers)) == ("0.0.0.0", 80, 2)


def test_every_https_server_has_a_table_of_its_own_on_one_listener() -> None:
    found = merged(gateway("gw", https(443, "a.b", name="a"), https(443, "c.d", name="c")))
    assert tables(found) == {"https.443.a.gw.edge": ["edge/gw:443"], "https.443.c.gw.edge": ["edge/gw:443"]}
    assert len(found.listeners) == 1


def test_an_address_to_bind_is_a_listener_and_a_table_of_its_own() -> None:
    found = merged(gateway("gw", server(80), server(80, bind="10.0.0.1", name="other")))
    assert tables(found) == {"http.80": ["edge/gw:80"], "http.80.10.0.0.1": ["edge/gw:80"]}
    assert [(at.bind, at.port) for at in found.listeners] == [("0.0.0.0", 80), ("10.0.0.1", 80)]


def test_an_address_to_bind_may_be_written_in_several_ways() -> None:
    found = merged(gateway("gw", server(80, bind="'2001:db8::1'"), server(80, bind="'2001:0db8:0::1'", name="other")))
    assert tables(found) == {"http.80.2001:db8::1": ["edge/gw:80", "edge/gw:80"]}
    assert [(at.bind, len(at.servers)) for at in found.listeners] == [("2001:db8::1", 2)]


def test_a_gateway_that_selects_other_routers_is_not_there() -> None:
    assert merged(gateway("gw", server(80), selector="istio: other")).listeners == ()


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (server(80), https(80), "is plaintext, and both can't be on one port"),
        (https(443), server(443, name="x"), "is TLS, and both can't be on one port"),
        (server(80), server(80, "TCP", name="x"), "only HTTP servers can be told apart"),
        (server(80, "TCP"), server(80, "MONGO", name="x"), "only HTTP servers can be told apart"),
        (https(443, "a.b, c.d"), https(443, "c.d", name="x"), "has the same hosts: c.d"),
        (https(443, "'x/a.b'"), https(443, "'y/a.b'", name="x"), "has the same hosts: a.b"),
        (https(443, "a.b, c.d"), https(443, "A.b", name="x"), "has the same hosts: a.b"),
    ],
)
def test_of_servers_that_cannot_share_a_port_the_older_gateway_wins(first: str, second: str, reason: str) -> None:
    found = merged(gateway("old", first) + gateway("young", second, age=1))
    assert [s.gateway.name for at in found.listeners for s in at.servers] == ["old"]
    (said,) = reasons(found)
    assert reason in said and "Gateway edge/old" in said


def test_two_redirecting_servers_for_a_host_are_no_conflict() -> None:
    redirect = server(80, tls="httpsRedirect: true")
    assert reasons(merged(gateway("a", redirect) + gateway("b", redirect))) == []


def test_a_router_that_is_an_endpoint_listens_where_its_service_leads() -> None:
    text = gateway("gw", server(80), https(443, name="https")) + config(
        "ServiceEntry",
        "edge",
        "{hosts: [edge.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, "
        "targetPort: 8080}, {number: 443, name: https, protocol: HTTPS, targetPort: 8443}], "
        "endpoints: [{address: 10.9.9.9}]}",
        namespace="edge",
    )
    found = merged(text)
    assert [(at.port, at.servers[0].port) for at in found.listeners] == [(8080, 80), (8443, 443)]
    assert list(found.tables) == ["http.8080", "https.443.https.gw.edge"]
    untranslated = "labels: {experimental.istio.io/disable-gateway-port-translation: 'true'}"
    found = merged(text.replace("name: edge,", f"name: edge, {untranslated},"))
    assert [(at.port, at.servers[0].port) for at in found.listeners] == [(80, 80), (443, 443)]


def _of_services(name: str, port: int, *hosts: str) -> str:
    """A Gateway of the Gateway API that is served by the endpoints of services."""
    addresses = ", ".join(f"{{type: Hostname, value: {host}}}" for host in hosts)
    spec = f"addresses: [{addresses}], listeners: [{{name: http, port: {port}, protocol: HTTP}}]"
    text = config("Gateway", name, f"{{gatewayClassName: istio, {spec}}}", namespace="edge")
    return text.replace("networking.istio.io/v1", "gateway.networking.k8s.io/v1")


def test_a_gateway_of_the_gateway_api_listens_where_its_own_services_lead() -> None:
    services = (
        config(
            "ServiceEntry",
            name,
            f"{{hosts: [{name}.test], resolution: STATIC, ports: [{{number: 80, name: a, protocol: HTTP, targetPort: "
            f"{port}}}, {{number: 81, name: b, protocol: HTTP, targetPort: {port + 1}}}], "
            "endpoints: [{address: 10.9.9.9}]}",
            namespace="edge",
        ).replace(f"name: {name},", f"name: {name}, labels: {{{UNTRANSLATED_LABEL}: 'true'}},")
        for name, port in (("outer", 8080), ("inner", 9090))
    )
    gateways = (
        _of_services("outer", 80, "outer.test"),
        _of_services("inner", 80, "inner.test"),
        _of_services("both", 81, "outer.test", "inner.test"),
        _of_services("other", 82, "outer.test"),
        gateway("gw", server(80)),
    )
    found = merged("".join((*services, *gateways)))
    served = {at.port: [each.gateway.name.partition("~")[0] for each in at.servers] for at in found.listeners}
    assert served == {8080: ["outer"], 9090: ["inner"], 8081: ["both"], 9091: ["both"], 82: ["other"], 80: ["gw"]}


def test_an_unprivileged_router_does_without_low_ports() -> None:
    found = merged(gateway("gw", server(80), server(8080)), UNPRIVILEGED_POD="true")
    assert [at.port for at in found.listeners] == [8080]
    assert reasons(found) == ["an unprivileged router can't listen on port 80"]


def test_hosts_may_be_for_one_namespace_the_gateways_own_or_all() -> None:
    (listener,) = merged(gateway("gw", server(80, hosts="'a/x.com', './y.com', '*/z.com', w.com"))).listeners
    (held,) = listener.servers
    assert held.hosts_for("a") == ("x.com", "z.com", "w.com")
    assert held.hosts_for("edge") == ("y.com", "z.com", "w.com")
    assert held.server_names == ("w.com", "x.com", "y.com", "z.com")


def test_listeners_are_called_by_address_and_port() -> None:
    world = world_of(gateway("gw", server(80), https(443)) + service("web"))
    workload = target(world, router()).workload
    assert list(gateway_listeners(world.view, workload)) == ["0.0.0.0_80", "0.0.0.0_443"]
