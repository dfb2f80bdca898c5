"""What has no effect is told, and only that: proxies are sent the same without it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.command_line import analyze
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.explain.analysis.suppressions import Suppressions
from tests.support.golden import Dump
from tests.support.routing import config, router, service, virtual_service
from tests.support.worlds import sidecar, world_of

SERVICES = service("other.test", ports="7000 http HTTP, 7001 tcp TCP")
HTTP = "http: [{%s route: [{destination: {host: other.test, port: {number: 7000}}}]}]"
TLS = "tls: [{match: [{sniHosts: [a.test] %s}], route: [{destination: {host: other.test, port: {number: 7001}}}]}]"
TCP = "tcp: [{%s route: [{destination: {host: other.test, port: {number: 7001}}}]}]"


def gateway(port: str, more: str = "") -> str:
    return config(
        "Gateway", "edge", f"{{selector: {{istio: edge}}, servers: [{{port: {{{port}}}, hosts: ['*'] {more}}}]}}"
    )


def sent(text: str) -> list[dict[str, Any]]:
    """What a sidecar and a router are sent, without where it comes from."""
    world = world_of(text)
    proxies = (sidecar(namespace="shop"), router(namespace="shop"))
    return [Dump(world, proxy, wanted=("listeners", "routes")).run() for proxy in proxies]


def told(text: str, folder: Path) -> list[str]:
    (folder / "a.yaml").write_text(text)
    found = analyze([str(folder / "a.yaml")], io.BytesIO(), suppressions=Suppressions(()))
    return [each.field for each in found.findings if each.code == "MP0001"]


PASSTHROUGH = gateway("number: 443, name: tls, protocol: TLS", ", tls: {mode: PASSTHROUGH}")
TERMINATED = gateway("number: 443, name: https, protocol: HTTPS", ", tls: {mode: SIMPLE, credentialName: a}")
MUTUAL = gateway("number: 443, name: tls, protocol: TLS", ", tls: {mode: ISTIO_MUTUAL}")
PLAIN = gateway("number: 80, name: http, protocol: HTTP")
BYTES = gateway("number: 9000, name: tcp, protocol: TCP")


@pytest.mark.parametrize(
    ("around", "rules", "field"),
    [
        (PASSTHROUGH, HTTP % "", "spec.http"),
        (PASSTHROUGH, TLS % "", ""),
        (PASSTHROUGH, TCP % "", "spec.tcp"),
        (TERMINATED, TLS % "", "spec.tls"),
        (TERMINATED, HTTP % "", ""),
        (MUTUAL, TLS % "", "spec.tls"),
        (MUTUAL, HTTP % "", "spec.http"),
        (MUTUAL, TCP % "", ""),
        (PLAIN, TCP % "", "spec.tcp"),
        (PLAIN, HTTP % "match: [{port: 8080}],", "spec.http[0].match"),
        (PLAIN, HTTP % "match: [{gateways: [mesh]}],", "spec.http[0].match"),
        (PLAIN, HTTP % "match: [{gateways: [shop/edge], port: 80}],", ""),
        (BYTES, HTTP % "", "spec.http"),
        (BYTES, TCP % "match: [{port: 9001}],", "spec.tcp[0].match"),
        (BYTES, TCP % "match: [{port: 9000}],", ""),
        (service("a.test", ports="443 tls TLS"), HTTP % "", "spec.http"),
        (service("a.test", ports="443 tls TLS") + service("b.test"), HTTP % "", ""),
        (service("a.test", ports="443 tls TLS"), TLS % ", port: 8443", "spec.tls[0].match"),
        (service("a.test", ports="443 tls TLS"), TLS % ", port: 443", ""),
        (service("a.test", ports="8080 http HTTP"), TCP % "", "spec.tcp"),
        (service("a.test", ports="8080 http HTTP"), HTTP % "match: [{port: 8081}],", "spec.http[0].match"),
        (service("a.test", ports="8080 x", addresses="10.5.0.1"), TCP % "", ""),
        (service("a.test", ports="8080 x"), HTTP % "", ""),
        (service("a.test", ports="8080 tcp TCP"), HTTP % "", "spec.http"),
        (service("a.test", ports="8080 tcp TCP"), TCP % "", ""),
    ],
)
def test_rules_without_effect_are_told_and_no_others(around: str, rules: str, field: str, tmp_path: Path) -> None:
    where = "gateways: [edge]," if "kind: Gateway" in around else ""
    text = SERVICES + around
    whole = text + virtual_service("vs", f"{{hosts: [a.test], {where} {rules}}}")
    assert told(whole, tmp_path) == ([field] if field else [])
    assert (sent(whole) == sent(text)) is bool(field)


@pytest.mark.parametrize(("number", "subset", "is_told"), [(80, False, False), (8080, False, True), (8080, True, True)])
def test_settings_for_a_port_that_the_host_lacks_are_told(
    number: int, subset: bool, is_told: bool, tmp_path: Path
) -> None:
    policy = f"trafficPolicy: {{portLevelSettings: [{{port: {{number: {number}}}, tls: {{mode: DISABLE}}}}]}}"
    inner = f"subsets: [{{name: v1, {policy}}}]" if subset else policy
    path = "spec.subsets[0].trafficPolicy" if subset else "spec.trafficPolicy"
    found = told(service("a.test") + config("DestinationRule", "dr", f"{{host: a.test, {inner}}}"), tmp_path)
    assert found == ([f"{path}.portLevelSettings[0].port.number"] if is_told else [])


@pytest.mark.parametrize(
    ("name", "label", "field"), [("http", "a", ""), ("htp", "a", "spec.ports[htp]"), ("htp", "b", "")]
)
def test_a_port_of_an_entry_that_no_service_has_is_told(name: str, label: str, field: str, tmp_path: Path) -> None:
    selector = "endpoints: [], workloadSelector: {labels: {app: a}}"
    text = service("a.test").replace("endpoints: [{address: 127.0.0.1}]", selector)
    entry = f"{{address: 10.0.0.1, labels: {{app: {label}}}, ports: {{{name}: 8081}}}}"
    assert told(text + config("WorkloadEntry", "one", entry), tmp_path) == ([field] if field else [])


@pytest.mark.parametrize(
    ("resolution", "exported", "interception", "namespace", "is_told"),
    [
        ("NONE", "'*'", "NONE", "shop", True),
        ("NONE", "'*'", "REDIRECT", "shop", False),
        ("NONE", ".", "NONE", "lab", False),
        ("DNS", "'*'", "NONE", "shop", False),
    ],
)
def test_an_original_destination_that_connected_sidecars_cannot_know_is_told(
    resolution: str, exported: str, interception: str, namespace: str, is_told: bool
) -> None:
    ports = "[{number: 443, name: tls, protocol: TLS}]"
    entry = f"{{hosts: [a.test], exportTo: [{exported}], resolution: {resolution}, ports: {ports}}}"
    proxy = sidecar(namespace=namespace, INTERCEPTION_MODE=interception)
    world = world_of(config("ServiceEntry", "a", entry))
    (cluster,) = [c for name, c in Dump(world, proxy).run()["clusters"].items() if name.startswith("outbound")] or [{}]
    assert (cluster.get("type") == "EDS") is is_told
    found = analyze_picture(picture_of(world, [proxy]))
    assert [each.path for each in found if each.type.code == "MP0001"] == (["spec.resolution"] if is_told else [])


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("shop/a.test", ""),
        ("./A.test", ""),
        ("'*/a.test'", ""),
        ("'~/*'", ""),
        ("lab/www.test", ""),
        ("shop/unknown.example", ""),
        ("shop/a.service.consul", ""),
        ("lab/a.test", "has no effect: a.test is of namespace shop"),
        ("./www.test", "has no effect: www.test is of namespace lab"),
        ("shop/long-nme.test", "has no effect: no service has this host; did you mean long-name.test?"),
    ],
)
def test_an_egress_host_that_its_namespace_lacks_is_told(host: str, reason: str, tmp_path: Path) -> None:
    text = service("a.test") + service("long-name.test")
    text += virtual_service("www", f"{{hosts: [www.test], {HTTP % ''}}}", namespace="lab") + SERVICES
    text += config("Sidecar", "default", f"{{egress: [{{hosts: ['./other.test', {host}]}}]}}")
    (tmp_path / "a.yaml").write_text(text)
    found = analyze([str(tmp_path / "a.yaml")], io.BytesIO(), suppressions=Suppressions(())).findings
    told_of_hosts = [(each.field, each.reason) for each in found if each.field.startswith("spec.egress")]
    assert told_of_hosts == ([("spec.egress[0].hosts[1]", reason)] if reason else [])


@pytest.mark.parametrize(
    ("listener", "is_whole", "is_told"),
    [
        ("hosts: [./a.test], port: {number: 80, protocol: HTTP, name: x}", False, False),
        ("hosts: [./a.test], port: {number: 5757, protocol: HTTP, name: x}", False, True),
        ("hosts: ['./*'], port: {number: 5757, protocol: TCP, name: x}", False, False),
        ("hosts: ['./*'], port: {number: 5757, protocol: TCP, name: x}", True, True),
        ("hosts: ['./*'], port: {number: 5757, protocol: HTTP_PROXY, name: x}, bind: 127.0.0.1", True, False),
    ],
)
def test_an_egress_port_that_no_service_has_is_told(listener: str, is_whole: bool, is_told: bool) -> None:
    world = world_of(service("a.test") + config("Sidecar", "default", f"{{egress: [{{{listener}}}]}}"))
    assert len(Dump(world, sidecar(namespace="shop")).run()["listeners"]) == (
        2 if is_told or "5757, protocol: TCP" in listener else 3
    )
    found = analyze_picture(attrs.evolve(picture_of(world), is_whole=is_whole))
    assert [each.path for each in found if each.type.code == "MP0001"] == (
        ["spec.egress[0].port.number"] if is_told else []
    )


@pytest.mark.parametrize(
    ("first", "second", "protocol", "is_left_out"),
    [
        ("a.test", "b.test", "HTTPS", False),
        ("lab/a.test", "hub/a.test", "HTTPS", True),
        ("a.test", "a.test, b.test", "HTTPS", True),
        ("'*.test'", "a.test", "HTTPS", False),
        ("lab/a.test", "hub/a.test", "HTTP", False),
    ],
)
@pytest.mark.parametrize("is_one", [True, False])
def test_a_server_whose_names_another_has_is_told(
    first: str, second: str, protocol: str, is_left_out: bool, is_one: bool, tmp_path: Path
) -> None:
    tls = ", tls: {mode: SIMPLE, credentialName: c}" if protocol == "HTTPS" else ""
    servers = [
        f"{{port: {{number: 443, name: p{number}, protocol: {protocol}}}, hosts: [{hosts}]{tls}}}"
        for number, hosts in enumerate((first, second))
    ]
    gateways = [", ".join(servers)] if is_one else servers
    text = "".join(
        config("Gateway", f"gw{number}", f"{{selector: {{istio: edge}}, servers: [{each}]}}", age=number)
        for number, each in enumerate(gateways)
    )
    (listener,) = Dump(world_of(text), router(namespace="shop")).run()["listeners"].values()
    assert (len(listener["filter_chains"]) == 1) is (is_left_out or protocol == "HTTP")
    (tmp_path / "a.yaml").write_text(text)
    found = analyze([str(tmp_path / "a.yaml")], io.BytesIO(), suppressions=Suppressions(())).findings
    assert ("IST0145" in {each.code for each in found}) is is_left_out


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        (service("a.test", ports="7000 tcp TCP"), service("b.test", ports="7000 db MySQL"), True),
        (service("a.test", ports="7000 tcp TCP"), service("b.test", ports="7001 tcp TCP"), False),
        (service("a.test", ports="7000 tcp TCP"), service("b.test", ports="7000 http HTTP"), False),
        (service("a.test", ports="7000 tls TLS"), service("b.test", ports="7000 tls TLS"), False),
        (
            service("a.test", ports="7000 tcp TCP", addresses="10.5.0.1"),
            service("b.test", ports="7000 tcp TCP", addresses="10.5.0.2"),
            False,
        ),
        (
            service("a.test", ports="7000 tcp TCP", addresses="10.5.0.1"),
            service("b.test", ports="7000 tcp TCP", addresses="10.5.0.1/32"),
            True,
        ),
    ],
)
def test_tcp_services_that_clients_cannot_tell_apart_are_told(
    first: str, second: str, is_told: bool, tmp_path: Path
) -> None:
    dump = Dump(world_of(first + second), sidecar(namespace="shop"), wanted=("listeners", "routes")).run()
    assert ("b.test" not in str(dump)) is is_told
    (tmp_path / "a.yaml").write_text(first + second)
    found = analyze([str(tmp_path / "a.yaml")], io.BytesIO(), suppressions=Suppressions(())).findings
    assert [each.object for each in found if each.code == "MP0021"] == (
        ["ServiceEntry/shop/a.test", "ServiceEntry/shop/b.test"] if is_told else []
    )


@pytest.mark.parametrize(
    ("rules", "is_seen"),
    [
        ([("shop", "'*'", "v1")], True),
        ([("owner", "'*'", "v1")], True),
        ([("istio-system", "'*'", "v1")], True),
        ([("lab", "'*'", "v1")], False),
        ([("owner", ".", "v1")], False),
        ([("owner", "shop", "v1")], True),
        ([("owner", "'*'", "v1"), ("shop", "'*'", "v2")], False),
    ],
)
def test_a_subset_of_a_rule_that_clients_do_not_use_is_told(
    rules: list[tuple[str, str, str]], is_seen: bool, tmp_path: Path
) -> None:
    route = "http: [{route: [{destination: {host: a.test, subset: v1}}]}]"
    text = service("a.test", namespace="owner") + virtual_service("vs", f"{{hosts: [a.test], {route}}}")
    for age, (namespace, exported, subset) in enumerate(rules):
        spec = f"{{host: a.test, exportTo: [{exported}], subsets: [{{name: {subset}}}]}}"
        text += config("DestinationRule", "dr", spec, namespace=namespace, age=age)
    clusters = Dump(world_of(text), sidecar(namespace="shop"), wanted=("clusters",)).run()["clusters"]
    assert ("outbound|80|v1|a.test" in clusters) is is_seen
    (tmp_path / "a.yaml").write_text(text)
    found = analyze([str(tmp_path / "a.yaml")], io.BytesIO(), suppressions=Suppressions(())).findings
    assert [each.field for each in found if each.code == "MP0008"] == (
        [] if is_seen else ["spec.http[0].route[0].destination.subset"]
    )
