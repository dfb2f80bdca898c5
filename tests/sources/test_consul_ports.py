"""Ports of a Consul service, of metadata and with names in Consul, and the checks of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.consul.source import ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.consul.source.instance import State, read_instance
from mesh_pilot.consul.source.mapping import left_out, read_service
from mesh_pilot.model.service import Protocol
from tests.sources.test_consul_mapping import endpoints, entry, read, reasons, service

NAMES = [f"p{number}" for number in range(10)]


def test_further_ports_are_in_the_order_of_their_names() -> None:
    meta = {f"port_{name}": str(9000 + number) for number, name in enumerate(NAMES)}
    assert [port.name for port in service(entry(meta=meta)).ports[1:]] == NAMES


def instances(key: str, *said: str, **more: str) -> list[dict[str, Any]]:
    """One that says each of these, and where it is empty nothing."""
    metas = [{**more, **({key: number} if number else {})} for number in said]
    return [entry(f"web-{i}", address=f"10.0.0.{i}", port=9001 + i, meta=meta) for i, meta in enumerate(metas)]


@pytest.mark.parametrize(
    ("said", "served", "reason"),
    [
        (("8080", "9090"), {"http": 8080, "http-9090": 9090}, "8080, 9090;"),
        (("9090", "8080", "8080", "7070"), {"http": 7070, "http-8080": 8080, "http-9090": 9090}, "7070, 8080, 9090;"),
        (("", "80"), {"http": 80, "http-9001": 9001}, "80, 9001 (9001 for those that do not say);"),
    ],
)
def test_while_instances_differ_on_the_port_for_clients_each_is_served_by_all(
    said: tuple[str, ...], served: dict[str, int], reason: str
) -> None:
    found = instances("service_port", *said, protocol="http")
    assert {port.name: port.number for port in service(*found).ports} == served
    for name in served:
        at = [(e.address, e.port) for e in endpoints(*found) if e.service_port == name]
        assert at == [(f"10.0.0.{i}", 9001 + i) for i in range(len(said))]
    assert reasons(read(*found)) == [f"Meta.service_port: instances differ: {reason} clients can use each of them"]


def test_the_default_of_settings_is_what_instances_that_do_not_say_mean() -> None:
    found = instances("service_port", "", "80", protocol="http")
    assert [port.number for port in service(*found, service_port=8080).ports] == [80, 8080]
    assert reasons(read(*instances("service_port", "", "80"), service_port=80)) == []


def test_further_ports_differ_in_the_same_way() -> None:
    found = instances("service_port_admin", "7000", "7001", protocol="http", port_admin="9900", service_port="80")
    assert [(p.name, p.number) for p in service(*found).ports] == [("http", 80), ("admin", 7000), ("admin-7001", 7001)]
    assert reasons(read(*found)) == [
        "Meta.service_port_admin: instances differ: 7000, 7001; clients can use each of them"
    ]
    apart = instances("port_admin", "9900", "9901", protocol="http", service_port="80")
    assert [(p.name, p.number) for p in service(*apart).ports] == [("http", 80), ("admin", 9900)]
    assert reasons(read(*apart)) == [
        "Meta.service_port_admin: instances listen on 2 ports, clients use the lowest, 9900: say service_port_admin"
    ]


@pytest.mark.parametrize(
    ("key", "values", "reason"),
    [
        ("protocol", ("http", "grpc"), "instances say grpc, http; grpc is used"),
        ("namespace", ("shop", "pay"), "instances say pay, shop; pay is used"),
        ("port_name", ("web", "main"), "instances say main, web; main is used"),
        ("external", ("true", "false"), "only some instances are external; the service counts as in the mesh"),
    ],
)
def test_other_contradictions_are_reported(key: str, values: tuple[str, str], reason: str) -> None:
    found = instances(key, *values, service_port="80")
    assert reasons(read(*found)) == [f"Meta.{key}: {reason}"]


def test_every_instance_has_the_account_that_it_says() -> None:
    found = endpoints(*instances("service_account", "a", "b", service_port="80"))
    assert [e.service_account for e in found] == ["ns/default/sa/a", "ns/default/sa/b"]


def test_the_ports_of_consul_2_are_ports_by_their_names() -> None:
    """``Ports`` takes the place of ``Port``; the default one is that of the registration."""
    listed = [
        {"Name": "metrics", "Port": 9100},
        {"Name": "http", "Port": 8080, "Default": True},
        {"Name": "grpc", "Port": 9090},
    ]
    found = entry(port=0, Ports=listed)
    assert [(p.name, p.number, p.protocol) for p in service(found).ports] == [
        ("http", 8080, Protocol.HTTP),
        ("grpc", 9090, Protocol.GRPC),
        ("metrics", 9100, Protocol.AUTO),
    ]
    assert {(e.service_port, e.port) for e in endpoints(found)} == {("http", 8080), ("grpc", 9090), ("metrics", 9100)}


def test_metadata_says_more_about_the_ports_of_consul_2() -> None:
    meta = {"service_port": "80", "protocol": "http2", "service_port_grpc": "90", "protocol_admin": "tcp"}
    listed = [{"Name": "web", "Port": 8080}, {"Name": "grpc", "Port": 9090}, {"Name": "admin", "Port": 9000}]
    assert [(p.name, p.number, p.protocol) for p in service(entry(port=0, Ports=listed, meta=meta)).ports] == [
        ("web", 80, Protocol.HTTP2),
        ("admin", 9000, Protocol.TCP),
        ("grpc", 90, Protocol.GRPC),
    ]


@pytest.mark.parametrize("odd", [None, [], "8080", [{"Name": "x"}, {"Port": 0}, 7, {"Name": 5, "Port": 99999}]])
def test_odd_ports_are_passed_over(odd: object) -> None:
    assert [p.number for p in service(entry(port=8080, Ports=odd)).ports] == [8080]
    assert reasons(read(entry(port=0, Ports=odd)))[-1].startswith("Port: no instance has a port")


OF = "instance 'web-1': "


def named(*ports: tuple[str, int], default: str = "") -> list[dict[str, Any]]:
    """``Ports`` as Consul 2.0 has them."""
    return [{"Name": name, "Port": number, "Default": name == default} for name, number in ports]


def test_a_port_is_the_same_one_by_its_name_whatever_is_the_default() -> None:
    one = entry("one", port=0, Ports=named(("http", 8080), ("grpc", 9090), default="http"))
    other = entry("two", port=0, Ports=named(("grpc", 9090), ("http", 8080), default="grpc"))
    older = entry("three", port=8080, meta={"port_name": "http", "port_grpc": "9090"})
    found = read(one, other, older)
    assert found.endpoints is not None and found.service is not None
    assert [(p.name, p.number) for p in found.service.ports] == [("http", 8080), ("grpc", 9090)]
    assert {(e.service_port, e.port) for e in found.endpoints.endpoints} == {("http", 8080), ("grpc", 9090)}
    assert len(found.endpoints.endpoints) == 6
    assert reasons(found) == ["Ports: instances say grpc, http; http is used"]


@pytest.mark.parametrize(
    ("port", "listed", "meta", "reason"),
    [
        (80, named(("http", 8080)), {}, f"Port: {OF}80 is not that of the default port, 'http'; 8080 is used"),
        (8080, named(("http", 8080)), {}, ""),
        (
            0,
            [*named(("http", 8080), default="http"), *named(("grpc", 9090), default="grpc")],
            {},
            "Ports: instance 'web-1': 'http' and 'grpc' are both the default; 'http' is used",
        ),
        (
            0,
            named(("http", 8080), ("http", 8081)),
            {},
            "Ports[1]: instance 'web-1': is a second port 'http'; the first, 8080, is used",
        ),
        (0, named(("http", 8080), ("", 9090)), {}, f"Ports[1]: {OF}port 9090 has no name; it is left out"),
        (
            0,
            [*named(("http", 8080)), {"Name": "grpc", "Port": 70000}],
            {},
            "Ports[1]: instance 'web-1': 70000 is not a port number; it is left out",
        ),
        (
            0,
            named(("http", 8080)),
            {"port_http": "8081"},
            "Meta.port_http: instance 'web-1': 8081 is not that of Ports; 8080 is used",
        ),
        (
            0,
            named(("http", 8080), ("grpc", 8080)),
            {},
            "Meta.port_grpc: is 8080 as that of 'http'; it is left out: set service_port_grpc",
        ),
    ],
)
def test_ports_that_contradict_themselves_are_reported_and_served(
    port: int, listed: list[dict[str, Any]], meta: dict[str, str], reason: str
) -> None:
    found = read(entry(port=port, Ports=listed, meta=meta))
    assert found.service is not None
    assert [(p.name, p.number) for p in found.service.ports][:1] == [("http", 8080)]
    assert reasons(found) == ([reason] if reason else [])


def test_what_many_instances_say_wrongly_is_told_once() -> None:
    odd = [entry(f"web-{number}", port=80, Ports=named(("http", 8080))) for number in range(3)]
    assert reasons(read(*odd)) == [
        "Port: instance 'web-0' and 2 more: 80 is not that of the default port, 'http'; 8080 is used"
    ]


def checked(id: str, **states: str) -> dict[str, Any]:
    """An instance with a check of each of these ports; ``whole``: of all its ports."""
    found = entry(id, port=0, checks=(), Ports=named(("http", 8080), ("grpc", 9090), default="http"))
    found["Checks"] = [
        {"CheckID": name, "Name": name if name == "whole" else f"port:{name}", "Status": status, "Output": "refused"}
        for name, status in states.items()
    ]
    return found


def ports_in(*entries: dict[str, Any], **settings: Any) -> list[tuple[str, str, str]]:
    return [
        (e.registration.id, e.service_port, e.health.value)
        for e in endpoints(*entries, **settings)
        if e.registration is not None
    ]


def test_a_check_of_one_port_is_of_that_port_alone() -> None:
    failing = checked("one", grpc="critical", whole="passing")
    assert ports_in(failing) == [("one", "http", "HEALTHY")]
    unhealthy = ports_in(failing, critical=CriticalRule.UNHEALTHY)
    assert unhealthy == [("one", "http", "HEALTHY"), ("one", "grpc", "UNHEALTHY")]
    assert ports_in(checked("one", whole="critical", grpc="passing")) == []
    warning = checked("one", grpc="warning")
    assert ports_in(warning, warning=WarningRule.OUT) == [("one", "http", "HEALTHY")]


def test_a_port_has_the_weight_of_its_own_state() -> None:
    found = checked("one", grpc="warning")
    found["Service"]["Weights"] = {"Passing": 10, "Warning": 2}
    assert [(e.service_port, e.weight) for e in endpoints(found)] == [("http", 10), ("grpc", 2)]


def test_a_check_that_names_no_port_of_the_service_is_of_all_and_told() -> None:
    found = read(checked("one", nope="critical"), checked("two"))
    assert found.endpoints is not None
    assert {e.registration.id for e in found.endpoints.endpoints if e.registration} == {"two"}
    assert reasons(found) == [
        "Checks: port:nope of instance 'one' names no port of the service; it is for all its ports"
    ]


def test_a_check_may_be_of_a_port_of_metadata_or_of_the_registration() -> None:
    found = entry(meta={"protocol": "http", "port_admin": "9000"}, checks=())
    for port, left in (("http", "admin"), ("admin", "http")):
        found["Checks"] = [{"CheckID": "c", "Name": f"port:{port}", "Status": "critical"}]
        assert [e.service_port for e in endpoints(found)] == [left]


def test_a_port_that_gets_no_traffic_is_told_with_its_check() -> None:
    found = {"web": [read_instance(checked("one", grpc="critical"))]}
    (line,) = left_out("web.service.consul", found, ConsulSettings())
    assert (line.port, line.state, line.reason) == (9090, State.CRITICAL, "port:grpc: refused")


def names_of(*entries: dict[str, Any], virtual: frozenset[str] = frozenset(), **settings: Any) -> dict[str, str]:
    """The further names of the service, with what they stand for."""
    found = read_service("Web", map(read_instance, entries), ConsulSettings(**settings), virtual)
    return {alias.host: alias.external_name for alias in found.aliases}


def test_virtual_names_are_those_of_consuls_dns() -> None:
    listed = named(("http", 8080), ("gRPC", 9090), ("not a label", 9091))
    host = "web.service.consul"
    assert names_of(entry(port=0, Ports=listed)) == {
        "web.virtual.consul": host,
        "http.web.virtual.consul": host,
        "grpc.web.virtual.consul": host,
    }
    assert names_of(entry(), virtual=frozenset(["240.0.0.1"]), domain="example.com") == {
        "web.virtual.example.com": "web.service.example.com"
    }
    vip = {"virtual": {"Address": "10.1.1.1", "Port": 80}}
    assert names_of(entry(TaggedAddresses=vip)) == {"web.virtual.consul": host}
    assert names_of(entry()) == {}
    assert names_of(entry(port=0, Ports=listed), remote=True) == {}
