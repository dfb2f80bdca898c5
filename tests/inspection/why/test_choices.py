"""The choices of ``why`` that need no Envoy to be checked: requests, listeners, endpoints, policies, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.explain.inspection.dump import ConfigDump, dump_of
from mesh_pilot.explain.inspection.why.clusters import endpoint_facts
from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
from mesh_pilot.explain.inspection.why.listeners import ListenerFacts, find_listener
from mesh_pilot.explain.inspection.why.matchers import request_facts
from mesh_pilot.explain.inspection.why.paths import normalized_path
from mesh_pilot.explain.inspection.why.rbac import rbac_verdict
from mesh_pilot.explain.inspection.why.request import WhyRequest, WrongRequest, parse_request
from mesh_pilot.explain.inspection.why.routes import find_virtual_host
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.explain.plan.past_world import resources_of
from mesh_pilot.model.resource import ENVOY_TYPES, LISTENER
from mesh_pilot.xds.ads.config_dump import config_dump
from mesh_pilot.xds.ads.status import TypeDump
from tests.support.command import mesh_pilot
from tests.support.manifests import manifest, service, subsets
from tests.support.worlds import sidecar, world_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("web.shop", ("http", "web.shop", 80, "/")),
        ("web.shop:9080/a?b=c", ("http", "web.shop", 9080, "/a?b=c")),
        ("web.shop:443", ("https", "web.shop", 443, "/")),
        ("https://WEB.shop/a", ("https", "web.shop", 443, "/a")),
        ("tcp://10.0.0.1:5432", ("tcp", "10.0.0.1", 5432, "/")),
        ("http://[2001:db8::1]:8080/", ("http", "2001:db8::1", 8080, "/")),
    ],
)
def test_a_request_is_read(text: str, wanted: tuple[str, str, int, str]) -> None:
    found = parse_request(text)
    assert (found.scheme, found.host, found.port, found.path) == wanted


@pytest.mark.parametrize(
    ("text", "header", "reason"),
    [
        ("/only/a/path", "a=b", "names no host"),
        ("web:port/", "a=b", "is not HOST[:PORT]/PATH"),
        ("ftp://web/", "a=b", "the scheme 'ftp'"),
        ("tcp://web", "a=b", "needs a port"),
        ("web", "a", "is not NAME=VALUE"),
    ],
)
def test_a_mistake_in_a_request_is_named(text: str, header: str, reason: str) -> None:
    with pytest.raises(WrongRequest) as refused:
        parse_request(text, [header])
    assert reason in str(refused.value)


def test_a_grpc_call_has_one_content_type() -> None:
    given = parse_request("grpc://a/", ["content-type=application/grpc+proto"])
    assert [value for _, value in given.headers] == ["application/grpc+proto"]
    assert dict(parse_request("grpc://a/").headers) == {"content-type": "application/grpc"}


VIRTUAL = ListenerFacts("virtualOutbound", "0.0.0.0", 15001, "OUTBOUND", captures=True)
CAPTURED = [
    VIRTUAL,
    ListenerFacts("0.0.0.0_80", "0.0.0.0", 80, "OUTBOUND", binds=False),
    ListenerFacts("10.0.0.1_80", "10.0.0.1", 80, "OUTBOUND", binds=False),
    ListenerFacts("virtualInbound", "0.0.0.0", 15006, "INBOUND"),
]
BOUND = [
    ListenerFacts("127.0.0.1_80", "127.0.0.1", 80, "OUTBOUND"),
    ListenerFacts("127.0.0.1_15002", "127.0.0.1", 15002, "OUTBOUND", is_http_proxy=True),
]
GATEWAY = [ListenerFacts("0.0.0.0_8080", "0.0.0.0", 8080)]


@pytest.mark.parametrize(
    ("listeners", "request_", "wanted"),
    [
        (CAPTURED, WhyRequest("a", 80, address="10.0.0.1"), "10.0.0.1_80"),
        (CAPTURED, WhyRequest("a", 80, address="10.0.0.2"), "0.0.0.0_80"),
        (CAPTURED, WhyRequest("a", 80), "0.0.0.0_80"),
        (CAPTURED, WhyRequest("a", 81, address="10.0.0.1"), "virtualOutbound"),
        (CAPTURED, WhyRequest("a", 80, address="2001:db8::1"), "virtualOutbound"),
        (CAPTURED, WhyRequest("a", 80, inbound=True), "virtualInbound"),
        (BOUND, WhyRequest("a", 80), "127.0.0.1_80"),
        (BOUND, WhyRequest("a", 8080), "127.0.0.1_15002"),
        (BOUND, WhyRequest("a", 8080, scheme="tcp"), None),
        (GATEWAY, WhyRequest("a", 8080), "0.0.0.0_8080"),
        (GATEWAY, WhyRequest("a", 80), None),
    ],
)
def test_the_listener_of_a_connection(listeners: list[ListenerFacts], request_: WhyRequest, wanted: str | None) -> None:
    found = find_listener(listeners, request_)
    assert (found.facts.name if found is not None else None) == wanted


def test_of_domains_the_most_specific_counts_in_any_case() -> None:
    domains = [["*"], ["*.example.com"], ["*.b.example.com", "web.*"], ["a.example.com", "a.example.com:80"]]

    def chosen(authority: str) -> int:
        found = find_virtual_host(domains, authority)
        assert found is not None
        return found.index

    hosts = ("A.example.com", "a.example.com:80", "c.example.com", "x.b.example.com", "web.org", ".example.com", "o")
    assert [chosen(host) for host in hosts] == [3, 3, 1, 2, 2, 0, 0]
    assert find_virtual_host(domains[1:], "o") is None
    ignoring = find_virtual_host(domains, "a.example.com:99", ignore_port=True)
    assert ignoring is not None and ignoring.index == 3


def endpoint(health: str, priority: int, weight: int = 1) -> dict[str, Any]:
    address = {"socket_address": {"address": "10.0.0.1", "port_value": 80}}
    host = {"endpoint": {"address": address}, "health_status": health, "load_balancing_weight": weight}
    return {"priority": priority, "lb_endpoints": [host]}


@pytest.mark.parametrize(
    ("endpoints", "shares"),
    [
        ([endpoint("HEALTHY", 0), endpoint("HEALTHY", 1)], [100, 0]),
        ([endpoint("UNHEALTHY", 0), endpoint("HEALTHY", 1)], [0, 100]),
        ([endpoint("HEALTHY", 0), endpoint("UNHEALTHY", 0), endpoint("HEALTHY", 1)], [70, 0, 30]),
        ([endpoint("HEALTHY", 0, 3), endpoint("HEALTHY", 0)], [75, 25]),
        ([endpoint("DRAINING", 0)], [0]),
    ],
)
def test_endpoints_share_requests_by_health_priority_and_weight(
    endpoints: list[dict[str, Any]], shares: list[int]
) -> None:
    found = endpoint_facts({"name": "c"}, {"endpoints": endpoints}, {})
    assert [round(each.share) for each in found] == shares


def test_paths_are_normalized_as_the_connection_manager_says() -> None:
    every = {"normalize_path": True, "merge_slashes": True, "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD"}
    assert normalized_path(every, "/a/%2e%2e/b%2Fc//d?e=/../f")[0] == "/b/c/d?e=/../f"
    assert normalized_path({}, "/a/../b") == ("/a/../b", "")


def test_policies_are_judged_and_what_is_not_known_is_named() -> None:
    spiffe = "spiffe://cluster.local/ns/shop/sa/web"
    rule = {
        "permissions": [{"and_rules": {"rules": [{"url_path": {"path": {"prefix": "/a"}}}, {"destination_port": 80}]}}],
        "principals": [{"authenticated": {"principal_name": {"exact": spiffe}}}],
    }

    def judged(action: str, path: str, **more: Any) -> tuple[bool | None, tuple[str, ...]]:
        request = WhyRequest("a", 80, path, inbound=True, **more)
        facts = request_facts(request, scheme="http", path=path, authority="a")
        found = rbac_verdict({"action": action, "policies": {"p": rule}}, request, facts)
        return found.admits, found.unknown

    assert judged("ALLOW", "/a", principal=spiffe) == (True, ())
    assert judged("DENY", "/a", principal=spiffe) == (False, ())
    assert judged("ALLOW", "/b") == (False, ())
    assert judged("ALLOW", "/a") == (None, ("the client's identity",))
    assert judged("ALLOW", "/a", mtls=False) == (False, ())
    assert judged("DENY", "/a", mtls=False) == (True, ())


def test_a_connection_that_a_policy_denies_is_closed_and_a_request_is_answered() -> None:
    anybody = {"permissions": [{"any": True}], "principals": [{"authenticated": {}}]}
    rbac = {"typed_config": {"@type": "x.RBAC", "rules": {"action": "ALLOW", "policies": {"p": anybody}}}}
    router = {"@type": "x.HttpConnectionManager", "http_filters": [rbac], "route_config": {"virtual_hosts": []}}

    def result(target: str, *filters: dict[str, Any]) -> dict[str, Any]:
        address = {"socket_address": {"address": "0.0.0.0", "port_value": 80}}
        listener = {"name": "edge", "address": address, "filter_chains": [{"filters": filters}]}
        section = {"@type": "x.ListenersConfigDump", "static_listeners": [{"listener": listener}]}
        dump = dump_of({"configs": [section]})
        assert dump is not None
        return explain(DumpEvidence(dump), parse_request(target)).result

    # Nobody is authenticated at a gateway without client certificates.
    tcp = result("tcp://a.test:80", rbac, {"typed_config": {"@type": "x.TcpProxy", "cluster": "a"}})
    assert (tcp["kind"], tcp["denied"], tcp["otherwise"]["kind"]) == ("closed", True, "cluster")
    http = result("a.test/", {"typed_config": router})
    assert (http["kind"], http["status"], http["denied"]) == ("response", 403, True)


CONFIG = (
    service("web.test", 80, {"address": "10.0.0.1", "labels": {"version": "v1"}}, name="web")
    + service("db.test", 5432, {"address": "10.0.0.2"}, name="db", protocol="TCP", addresses=["10.9.9.9"])
    + subsets("web.test", "v1")
    + manifest("VirtualService", "root", {
        "hosts": ["web.test"],
        "http": [
            {"match": [{"uri": {"prefix": "/api"}}], "delegate": {"name": "api"}}, {"directResponse": {"status": 404}},
        ],
    })
    + manifest("VirtualService", "api", {"http": [
        {"match": [{"uri": {"prefix": "/api/old"}}], "redirect": {"uri": "/api/new"}},
        {"fault": {"abort": {"httpStatus": 500, "percentage": {"value": 1.5}}},
         "mirrors": [{"destination": {"host": "web.test"}, "percentage": {"value": 10}}],
         "route": [{"destination": {"host": "web.test", "subset": "v1"}}]},
    ]})
)  # fmt: skip


@pytest.fixture(scope="module")
def dump() -> ConfigDump:
    """The dump of a sidecar at one of the services."""
    resources = resources_of(world_of(CONFIG), sidecar("10.0.0.1", namespace="shop"))
    dumps = [TypeDump(url, "1", True, tuple(found.values())) for url, found in resources.items() if url in ENVOY_TYPES]
    found = dump_of(config_dump(tuple(dumps)))
    assert found is not None
    return found


def test_a_dump_alone_tells_the_whole_story(dump: ConfigDump) -> None:
    evidence = DumpEvidence(dump)
    answer = explain(evidence, parse_request("web.test/api/x"))
    assert [step.step for step in answer.steps] == [
        *("listener", "filter chain", "route table", "virtual host", "route", "cluster", "endpoints", "mirror")
    ]
    (route,) = (step for step in answer.steps if step.step == "route")
    assert "1.5 % aborted with 500" in route.text
    assert [step.text for step in answer.nearly] == ['needs: the path begins with "/api/old"; it is "/api/x"']
    assert explain(evidence, parse_request("web.test/api/old/y")).result == {
        "kind": "redirect", "status": 301, "location": "http://web.test/api/new",
    }  # fmt: skip
    assert explain(evidence, parse_request("web.test/other")).result == {"kind": "response", "status": 404}
    (cluster,) = explain(evidence, parse_request("tcp://db.test:5432")).result["clusters"]
    assert cluster == {"name": "outbound|5432||db.test", "share": 100.0}
    unknown = explain(evidence, parse_request("nobody.test/"))
    assert unknown.outcome == "forwarded to PassthroughCluster"
    inbound = explain(evidence, parse_request("web.test:80/", inbound=True))
    assert inbound.result["clusters"] == [{"name": "inbound|80||", "share": 100.0}]


@pytest.mark.process
def test_nothing_in_a_dump_makes_a_traceback(tmp_path: Path) -> None:
    listener = {"@type": LISTENER, "name": "x", "address": {"socket_address": {"address": "a", "port_value": 80}}}
    odd = {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [
        {"name": "x", "active_state": {"listener": {**listener, "filter_chains": [3]}}},
    ]}  # fmt: skip
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"configs": [odd]}))
    ran = mesh_pilot("why", "web.test/", "--file", str(file))
    assert ran.code == 1
    assert ran.err.startswith("mesh-pilot: the dump has something that no Envoy has: ")


def test_a_host_that_envoy_has_ejected_gets_no_requests(dump: ConfigDump) -> None:
    (assignment,) = (each for each in dump.endpoints.values() if each.name == "outbound|80|v1|web.test")
    address = assignment.message["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    status = {"address": address, "health_status": {"failed_outlier_check": True}}
    ejected = attrs.evolve(dump, host_statuses={"outbound|80|v1|web.test": [status]})
    texts = [
        step.text
        for each in (dump, ejected)
        for step in explain(DumpEvidence(each), parse_request("web.test/api/x")).steps
        if step.step == "endpoints"
    ]
    assert texts == ["1 of 1 healthy, by plaintext", "none of 1 is healthy"]
