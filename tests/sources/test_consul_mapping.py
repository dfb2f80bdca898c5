"""What health entries of Consul come to; entries are as Consul 1.8 gives them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mesh_pilot.consul.source import ConsulSettings, CriticalRule, WarningRule
from mesh_pilot.consul.source.instance import read_instance
from mesh_pilot.consul.source.mapping import MappedService, left_out, read_service
from mesh_pilot.model.service import Endpoint, Health, Locality, Protocol, Resolution, Service


def entry(
    id: str = "web-1",
    *,
    address: str = "10.0.0.1",
    port: int = 8080,
    meta: dict[str, str] | None = None,
    tags: list[str] | None = None,
    node: dict[str, Any] | None = None,
    checks: tuple[str, ...] = ("passing",),
    **service: Any,
) -> dict[str, Any]:
    """A health entry."""
    return {
        "Node": {"Node": "node-1", "Address": "10.9.9.9", "Datacenter": "dc1", "Meta": {}, **(node or {})},
        "Service": {
            "ID": id,
            "Service": "web",
            "Address": address,
            "Port": port,
            "Meta": meta,
            "Tags": tags,
            "Weights": {"Passing": 1, "Warning": 1},
            **service,
        },
        "Checks": [{"CheckID": f"check-{i}", "Status": status} for i, status in enumerate(checks)],
    }


def read(*entries: dict[str, Any], name: str = "web", **settings: Any) -> MappedService:
    return read_service(name, map(read_instance, entries), ConsulSettings(**settings))


def service(*entries: dict[str, Any], **settings: Any) -> Service:
    found = read(*entries, **settings).service
    assert found is not None
    return found


def endpoints(*entries: dict[str, Any], **settings: Any) -> tuple[Endpoint, ...]:
    found = read(*entries, **settings).endpoints
    assert found is not None
    return found.endpoints


def reasons(reading: MappedService) -> list[str]:
    return [str(problem) for problem in reading.problems]


def test_a_service_has_the_host_of_its_name_in_consuls_domain() -> None:
    assert service(entry()).key == ("web.service.consul", "default")
    assert service(entry(), domain="example.com", namespace="shop").key == ("web.service.example.com", "shop")
    assert service(entry(), name="Web").host == "web.service.consul"


def test_a_remote_datacenter_is_part_of_the_host() -> None:
    assert service(entry(), remote=True).host == "web.service.dc1.consul"
    assert service(entry(), remote=True, datacenter="east").host == "web.service.east.consul"


def test_a_remote_datacenter_may_serve_the_local_host_too() -> None:
    reading = read(entry(), remote=True, merged=True)
    assert reading.service is not None and reading.merged is not None and reading.endpoints is not None
    endpoints, service = reading.merged
    assert reading.service.host == "web.service.dc1.consul"
    assert service.host == endpoints.service.host == "web.service.consul"
    assert endpoints.endpoints == reading.endpoints.endpoints
    assert len(reading.items()) == 4


def test_a_service_may_name_its_namespace() -> None:
    assert service(entry(meta={"namespace": "shop"})).namespace == "shop"
    reading = read(entry(meta={"namespace": "No Such"}))
    assert reading.service is not None and reading.service.namespace == "default"
    assert reasons(reading) == ["Meta.namespace: 'No Such' is not a namespace; the service is served in 'default'"]


def test_protocol_comes_from_metadata_else_from_tags_else_from_the_option() -> None:
    def protocol(**more: Any) -> Protocol:
        return service(entry(**more)).ports[0].protocol

    assert protocol(meta={"protocol": "grpc"}, tags=["protocol=http"]) is Protocol.GRPC
    assert protocol(tags=["protocol=http2"]) is Protocol.HTTP2
    assert protocol(tags=["primary", "http"]) is Protocol.HTTP
    assert protocol() is Protocol.AUTO
    assert service(entry(), default_protocol=Protocol.HTTP).ports[0].protocol is Protocol.HTTP


def test_an_unknown_protocol_is_told_and_the_service_served_all_the_same() -> None:
    reading = read(entry(meta={"protocol": "htpp"}))
    assert reading.service is not None
    assert reasons(reading) == ["Meta.protocol: 'htpp' is not a known protocol; UnsupportedProtocol is used"]


def test_instances_may_listen_anywhere_where_the_service_says_its_port() -> None:
    one, two = entry("a", port=31001, meta={"service_port": "80"}), entry("b", port=31002, meta={"service_port": "80"})
    assert [p.number for p in service(one, two).ports] == [80]
    assert [e.port for e in endpoints(one, two)] == [31001, 31002]
    assert read(one, two).problems == ()


def test_without_a_port_said_clients_use_the_lowest_and_it_is_told_where_they_differ() -> None:
    reading = read(entry("a", port=31002), entry("b", port=31001))
    assert reading.service is not None and reading.service.ports[0].number == 31001
    assert reasons(reading) == [
        "Meta.service_port: instances listen on 2 ports, clients use the lowest, 31001: say service_port"
    ]
    assert service(entry("a", port=31002), service_port=80).ports[0].number == 80


def test_a_bad_port_number_is_told_and_ignored() -> None:
    reading = read(entry(meta={"service_port": "http"}))
    assert reading.service is not None and reading.service.ports[0].number == 8080
    assert reasons(reading) == ["Meta.service_port: 'http' is not a port number; it is ignored"]


def test_metadata_names_further_ports() -> None:
    meta = {"protocol": "http", "port_grpc": "9090", "port_admin": "9901", "protocol_admin": "http2"}
    ports = service(entry(meta=meta)).ports
    assert [(p.name, p.number, p.protocol) for p in ports] == [
        ("http", 8080, Protocol.HTTP),
        ("admin", 9901, Protocol.HTTP2),
        ("grpc", 9090, Protocol.GRPC),
    ]
    assert [(e.service_port, e.port) for e in endpoints(entry(meta=meta))] == [
        ("http", 8080),
        ("admin", 9901),
        ("grpc", 9090),
    ]


def test_two_ports_of_one_number_are_told() -> None:
    reading = read(entry(meta={"port_admin": "8080"}))
    assert reading.service is not None and len(reading.service.ports) == 1
    assert reasons(reading) == ["Meta.port_admin: is 8080 as that of 'main'; it is left out: set service_port_admin"]


def test_a_service_without_any_port_can_not_be_served() -> None:
    reading = read(entry(port=0))
    assert reading.service is None
    assert reasons(reading) == ["Port: no instance has a port: register it with one, or with metadata port_<name>"]


def test_labels_are_of_metadata_and_tags_without_what_has_a_meaning() -> None:
    found = endpoints(
        entry(meta={"version": "v2", "protocol": "http", "port_x": "1"}, tags=["a|b", "track=c=d", "plain"])
    )
    assert found[0].labels == {"version": "v2", "a": "b", "track": "c=d"}


def test_the_order_of_entries_tags_and_metadata_changes_nothing() -> None:
    meta = {f"key{i}": str(i) for i in range(8)}
    tags = ["k=2", "k=1", "z=1", "a|1"]
    plain = [entry(f"web-{i}", port=8000 + i, meta=meta, tags=tags) for i in range(6)]
    expected = read(*plain)
    shuffler = random.Random(1)
    for _ in range(20):
        mixed = list(meta.items())
        shuffler.shuffle(mixed)
        entries = [
            entry(f"web-{i}", port=8000 + i, meta=dict(mixed), tags=shuffler.sample(tags, len(tags))) for i in range(6)
        ]
        shuffler.shuffle(entries)
        assert read(*entries) == expected
        assert [repr(e) for e in endpoints(*entries)] == [repr(e) for e in endpoints(*plain)]


def test_locality_is_of_the_datacenter_and_of_metadata() -> None:
    node = {"Meta": {"zone": "z1", "subzone": "rack-1"}}
    assert endpoints(entry(node=node))[0].locality == Locality("dc1", "z1", "rack-1")
    meta = {"region": "eu", "zone": "z2"}
    assert endpoints(entry(node=node, meta=meta))[0].locality == Locality("eu", "z2", "rack-1")


def test_a_locality_that_is_registered_comes_before_that_of_the_node() -> None:
    """``Locality`` is as the documentation of Consul Enterprise has it."""
    node = {"Locality": {"Region": "us", "Zone": "us-1"}, "Meta": {"zone": "z1", "subzone": "rack-1"}}
    assert endpoints(entry(node=node))[0].locality == Locality("us", "us-1", "rack-1")
    own = {"Region": "eu", "Zone": "eu-1"}
    assert endpoints(entry(node=node, Locality=own))[0].locality == Locality("eu", "eu-1", "rack-1")
    assert endpoints(entry(Locality=own, meta={"zone": "z2"}))[0].locality == Locality("eu", "z2", "")
    assert endpoints(entry(Locality="eu"))[0].locality == Locality("dc1", "", "")


def test_the_cluster_is_the_datacenter_unless_metadata_say_otherwise() -> None:
    assert endpoints(entry())[0].cluster_id == "dc1"
    (found,) = endpoints(entry(meta={"cluster_id": "east"}))
    assert (found.cluster_id, found.labels) == ("east", {})


def test_weights_are_consuls() -> None:
    weights = {"Passing": 10, "Warning": 2}
    assert endpoints(entry(Weights=weights))[0].weight == 10
    assert endpoints(entry(Weights=weights, checks=("passing", "warning")))[0].weight == 2


@pytest.mark.parametrize("warning", list(WarningRule))
def test_an_instance_whose_weight_is_zero_gets_no_traffic(warning: WarningRule) -> None:
    """Envoy takes a weight of 0 for 1."""
    warns: dict[str, Any] = {"Weights": {"Passing": 5, "Warning": 0}, "checks": ("warning",)}
    found = endpoints(entry("a", **warns), entry("b", address="10.0.0.2"), warning=warning)
    assert [e.address for e in found] == ["10.0.0.2"]
    assert endpoints(entry("a", **warns), entry("b", **warns), warning=warning) == ()
    assert service(entry("a", **warns), warning=warning).ports, "the service itself stays"
    assert endpoints(entry(Weights={"Passing": 0, "Warning": 3}), warning=warning) == ()


def test_a_weight_that_is_none_counts_as_one_and_a_huge_one_as_the_most() -> None:
    assert [endpoints(entry(Weights={"Passing": w}))[0].weight for w in ("0", -1, None, 70_000)] == [1, 1, 1, 65_535]


def test_the_worst_check_decides() -> None:
    def health(*checks: str, **settings: Any) -> Health | None:
        found = endpoints(entry(checks=checks), **settings)
        return found[0].health if found else None

    assert health() is Health.HEALTHY
    assert health("passing", "warning") is Health.HEALTHY
    assert health("warning", warning=WarningRule.OUT) is None
    assert health("warning", warning=WarningRule.UNHEALTHY) is Health.UNHEALTHY
    assert health("passing", "critical") is None
    assert health("critical", critical=CriticalRule.UNHEALTHY) is Health.UNHEALTHY


def test_maintenance_is_as_critical() -> None:
    whole = entry()
    whole["Checks"].append({"CheckID": "_service_maintenance:web-1", "Status": "critical"})
    assert endpoints(whole) == ()
    assert service(whole).host == "web.service.consul"


def test_an_instance_without_an_address_has_its_nodes() -> None:
    assert endpoints(entry(address=""))[0].address == "10.9.9.9"
    assert endpoints(entry(address="fd00::1"))[0].address == "fd00::1"


def test_tagged_addresses_are_used_where_asked_for() -> None:
    tagged = {"wan": {"Address": "198.51.100.1", "Port": 9443}, "virtual": {"Address": "10.96.0.1", "Port": 80}}
    whole = entry(TaggedAddresses=tagged)
    assert (endpoints(whole)[0].address, endpoints(whole)[0].port) == ("10.0.0.1", 8080)
    assert service(whole).addresses == ("10.96.0.1",)
    remote = endpoints(whole, address_tag="wan")[0]
    assert (remote.address, remote.port) == ("198.51.100.1", 9443)
    node = {"TaggedAddresses": {"wan": "198.51.100.2"}}
    assert endpoints(entry(address="", node=node), address_tag="wan")[0].address == "198.51.100.2"
    assert endpoints(entry(node=node), address_tag="wan")[0].address == "10.0.0.1"


def test_identities_are_spiffe_ids_or_names_of_accounts() -> None:
    full = "spiffe://other/ns/x/sa/y"
    assert endpoints(entry(meta={"service_account": full}))[0].service_account == full
    bare = endpoints(entry(meta={"service_account": "web", "namespace": "shop", "tls_mode": "istio"}))[0]
    assert bare.service_account == "ns/shop/sa/web"
    assert bare.tls_mode == "istio"


def test_proxies_of_consuls_own_mesh_are_no_services() -> None:
    assert read(entry(Kind="connect-proxy")) == MappedService()
    assert len(endpoints(entry("a"), entry("b", Kind="connect-proxy"))) == 1


def test_external_services_are_so_by_metadata_or_by_their_node() -> None:
    assert service(entry(meta={"external": "true"})).external
    outside = service(entry(address="api.example.com", node={"Meta": {"external-node": "true"}}))
    assert outside.external and outside.resolution is Resolution.DNS
    assert service(entry()).resolution is Resolution.CLIENT_SIDE


def test_instances_that_contradict_each_other_are_told_and_most_win() -> None:
    entries = [entry("a", meta={"protocol": "http"}), entry("b", meta={"protocol": "grpc"}), entry("c", tags=["http"])]
    reading = read(*entries)
    assert reading.service is not None and reading.service.ports[0].protocol is Protocol.HTTP
    assert reasons(reading) == ["Meta.protocol: instances say grpc, http; http is used"]


def test_a_name_that_no_host_can_have_is_refused() -> None:
    assert reasons(read(entry(), name="a/b")) == [
        "Service: 'a/b' can't stand in a host name: letters, digits, - and _ can"
    ]


def test_nonsense_costs_no_more_than_itself() -> None:
    assert read_instance(None).port == 0
    assert read_instance({"Node": [], "Service": {"Tags": "x", "Meta": 3, "Port": "80"}, "Checks": {}}).address == ""


def test_an_instance_has_its_address_of_the_other_ip_version_from_a_tag() -> None:
    def addresses(whole: dict[str, Any], **settings: Any) -> tuple[str, ...]:
        (found,) = endpoints(whole, **settings)
        return found.addresses

    def tagged(**tags: str) -> dict[str, Any]:
        return {tag: {"Address": address, "Port": 8080} for tag, address in tags.items()}

    six = tagged(lan_ipv4="10.0.0.1", lan_ipv6="2001:db8:0::1", wan_ipv6="2001:db8::2", wan="192.0.2.1")
    assert addresses(entry(TaggedAddresses=six)) == ("10.0.0.1", "2001:db8::1")
    assert addresses(entry(TaggedAddresses=six), address_tag="wan") == ("192.0.2.1", "2001:db8::2")
    assert addresses(entry(TaggedAddresses=six), address_tag="lan_ipv6") == ("2001:db8:0::1",)
    four = tagged(lan_ipv4="10.0.0.1")
    assert addresses(entry(address="2001:db8::1", TaggedAddresses=four)) == ("2001:db8::1", "10.0.0.1")
    node = {"TaggedAddresses": {"lan_ipv6": "2001:db8::9"}}
    assert addresses(entry(address="", node=node)) == ("10.9.9.9", "2001:db8::9")
    assert addresses(entry(node=node)) == ("10.0.0.1",), "the instance is not at its node's address"
    assert addresses(entry(address="web.example", TaggedAddresses=six)) == ("web.example",)


@pytest.mark.parametrize(
    ("address", "port", "reason"),
    [
        ("10.0.0.2", 8080, "'10.0.0.2' of instance 'web-1' is not an IPv6 address; it is ignored"),
        ("web.example", 8080, "'web.example' of instance 'web-1' is not an IPv6 address; it is ignored"),
        ("2001:db8::1", 81, "instance 'web-1' listens at port 81 there and at 8080 else; it is ignored"),
    ],
)
def test_an_address_of_the_other_ip_version_that_is_of_no_use_is_told_and_ignored(
    address: str, port: int, reason: str
) -> None:
    reading = read(entry(TaggedAddresses={"lan_ipv6": {"Address": address, "Port": port}}))
    assert reading.endpoints is not None and reading.endpoints.endpoints[0].addresses == ("10.0.0.1",)
    assert reasons(reading) == [f"TaggedAddresses.lan_ipv6: {reason}"]


def test_an_instance_at_no_address_that_can_be_reached_is_left_out_and_told() -> None:
    bad = ("300.1.1.1", "010.0.0.1", "fe80::1%eth0", "a b", "10.0.0.1/8", "ü", "a" * 256)
    for address in bad:
        reading = read(entry(), entry("web-2", address=address))
        assert reading.service is not None and reading.service.resolution is Resolution.CLIENT_SIDE
        assert reading.endpoints is not None and len(reading.endpoints.endpoints) == 1
        said = f"instance 'web-2' is left out: the address {address[:255]!r} is neither an IP address nor a host name"
        assert reasons(reading) == [f"Address: {said}"]
    assert len(endpoints(entry(), entry("web-2", address="my_host.test."), entry("web-3", address="2001:db8::1"))) == 3


def test_a_virtual_address_that_is_none_is_told_and_ignored() -> None:
    tagged = {"virtual": {"Address": "240.0.0", "Port": 80}}
    reading = read(entry(TaggedAddresses=tagged))
    assert reading.service is not None and reading.service.addresses == ()
    assert reasons(reading) == ["TaggedAddresses.virtual: '240.0.0' is not an IP address; it is ignored"]


def test_a_name_too_long_for_a_host_is_refused() -> None:
    reading = read(entry(), name="a" * 250)
    assert reading.service is None
    assert "has 265 characters, allowed are 255" in reasons(reading)[0]


# -- networks


WAN = {"wan": {"Address": "203.0.113.5", "Port": 30443}}
LABELS = ["topology.istio.io/network=n2", "networking.istio.io/gatewayPort=15443"]


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        ({"meta": {"network": "n2", "gateway_port": "15443"}}, ("10.0.0.1", 15443, "n2", "dc1")),
        ({"meta": {"gateway_port": "15443", "cluster_id": "east"}}, ("10.0.0.1", 15443, "", "east")),
        ({"tags": LABELS}, ("10.0.0.1", 15443, "n2", "dc1")),
        ({"tags": [*LABELS, "topology.istio.io/cluster=east"]}, ("10.0.0.1", 15443, "n2", "east")),
        ({"tags": LABELS[:1], "port": 15443}, ("10.0.0.1", 15443, "n2", "dc1")),
        ({"tags": LABELS[:1]}, None),
        ({"port": 15443}, None),
        # Its address for other networks is that of Consul's wide-area network.
        ({"tags": LABELS, "port": 15443, "TaggedAddresses": WAN}, ("203.0.113.5", 30443, "n2", "dc1")),
        ({"tags": LABELS, "port": 80, "TaggedAddresses": WAN}, ("203.0.113.5", 15443, "n2", "dc1")),
        (
            {"tags": LABELS, "address": "", "node": {"TaggedAddresses": {"wan": "203.0.113.9"}}},
            ("203.0.113.9", 15443, "n2", "dc1"),
        ),
        ({"tags": LABELS, "address": "GW.example.com."}, ("gw.example.com", 15443, "n2", "dc1")),
        ({"tags": LABELS, "address": "2001:DB8::1"}, ("2001:db8::1", 15443, "n2", "dc1")),
    ],
)
def test_an_instance_is_a_gateway_of_its_network_by_its_port(
    instance: dict[str, Any], expected: tuple[Any, ...] | None
) -> None:
    assert service(entry(**instance)).network_gateways == ((expected,) if expected else ())


def test_gateways_that_are_not_healthy_count_only_where_none_is() -> None:
    def found(*checks: str) -> list[str]:
        instances = [entry(f"gw-{n}", address=f"10.0.0.{n}", tags=LABELS, checks=(c,)) for n, c in enumerate(checks, 1)]
        return [gateway.address for gateway in service(*instances).network_gateways]

    assert found("passing", "passing", "critical") == ["10.0.0.1", "10.0.0.2"]
    assert found("critical", "critical") == ["10.0.0.1", "10.0.0.2"]


def test_what_cannot_be_a_gateway_is_said_and_served_as_an_instance() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"meta": {"network": "n2", "gateway_port": "high"}}, "Meta.gateway_port: 'high' is not a port number"),
        (
            {"tags": LABELS, "TaggedAddresses": {"wan": {"Address": "no host", "Port": 1}}},
            "'no host' is neither an IP address",
        ),
    ]
    for broken, said in cases:
        reading = read(entry(**broken))
        assert reading.service is not None and reading.service.network_gateways == ()
        assert reading.endpoints is not None and len(reading.endpoints.endpoints) == 1
        assert any(said in reason for reason in reasons(reading))


def test_an_instance_says_its_network_in_metadata_or_by_istios_label() -> None:
    (by_meta,) = endpoints(entry(meta={"network": "n1"}, tags=LABELS))
    (by_label,) = endpoints(entry(tags=[*LABELS, "topology.istio.io/cluster=east"]))
    assert (by_meta.network, by_label.network) == ("n1", "n2")
    assert (by_meta.cluster_id, by_label.cluster_id) == ("dc1", "east")


def test_a_gateway_serves_its_network_once_where_datacenters_are_merged() -> None:
    reading = read(entry(tags=LABELS), remote=True, merged=True)
    found = [item for item in reading.items() if isinstance(item, Service)]
    assert [len(each.network_gateways) for each in found] == [1, 0]


def test_an_instance_that_gets_no_traffic_is_known_with_its_check() -> None:
    def known(*entries: dict[str, Any], **settings: Any) -> list[tuple[str, str]]:
        found = {"web": list(map(read_instance, entries))}
        lines = left_out("web.service.consul", found, ConsulSettings(**settings))
        return [(line.instance.id, line.reason) for line in lines]

    bad = entry("bad", checks=("passing", "critical"))
    bad["Checks"][1] |= {"Name": "HTTP on :80", "Output": "connection\n refused" + "!" * 500}
    idle = entry("idle", checks=("warning",), Weights={"Passing": 1, "Warning": 0})
    assert known(entry("good"), bad, idle) == [
        ("bad", f"HTTP on :80: connection refused{'!' * 182}"),
        ("idle", "weight 0; check-0"),
    ]
    away = entry("away")
    away["Checks"].append({"CheckID": "_node_maintenance", "Status": "critical", "Notes": "disk is full"})
    assert known(away) == [("away", "_node_maintenance: disk is full")]
    assert known(entry("warns", checks=("warning",))) == []
    assert known(entry("warns", checks=("warning",)), warning=WarningRule.OUT) == [("warns", "check-0")]
    assert list(left_out("api.service.consul", {"web": [read_instance(bad)]}, ConsulSettings())) == []
