"""Ports that metadata of Consul names are in one order, on every replica and after every restart."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert reasons(read(entry(port=0, Ports=odd)))[0].startswith("Port: no instance has a port")
