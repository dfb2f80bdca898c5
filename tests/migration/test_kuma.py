"""Resources of Kuma: what becomes of them, and what is listed. What it denies stays denied."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.migration.kuma.resources import LEFT_TYPES, NEWER, TAKEN_TYPES
from tests.migration.dumps import dump_of, left, migrate, reasons, specs

MTLS = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}
MESH = {"type": "Mesh", "name": "default", "mtls": MTLS}


def policy(type: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"type": type, "mesh": "default", "name": name, "spec": spec}


def old(type: str, name: str, conf: Any = None, *, source: str = "*", destination: str = "*") -> dict[str, Any]:
    made = {
        "type": type,
        "mesh": "default",
        "name": name,
        "sources": [{"match": {"kuma.io/service": source}}],
        "destinations": [{"match": {"kuma.io/service": destination}}],
    }
    return {**made, "conf": conf} if conf is not None else made


def dataplane(service: str, protocol: str = "http", number: int = 1, **tags: str) -> dict[str, Any]:
    every = {"kuma.io/service": service, "kuma.io/protocol": protocol, **tags}
    networking = {"address": f"10.0.{len(service)}.{number}", "inbound": [{"port": 8080, "tags": every}]}
    return {"type": "Dataplane", "mesh": "default", "name": f"{service}-{number}", "networking": networking}


def service(name: str) -> dict[str, Any]:
    return {"kind": "MeshService", "name": name}


def of(*found: Any) -> Any:
    return migrate("kuma", yaml_text(found))


def test_a_route_splits_requests_between_subsets() -> None:
    found = dump_of("kuma")
    routes = specs(found, "VirtualService")["backend"]["http"]
    general = [route for route in routes if "sourceLabels" not in str(route)]
    assert [route["match"][0]["uri"] for route in general[:2]] == [{"exact": "/api"}, {"prefix": "/api/"}]
    weights = {each["destination"]["subset"]: each["weight"] for each in general[0]["route"]}
    assert weights == {"version-v1": 90, "version-v2": 10}


def test_settings_for_some_clients_are_routes_for_their_labels() -> None:
    routes = specs(dump_of("kuma"), "VirtualService")["backend"]["http"]
    timeouts = {(route.get("match", [{}])[0].get("sourceLabels") or {}).get("kuma.io/service"): route["timeout"]
                for route in routes}  # fmt: skip
    assert timeouts == {"web": "3s", None: "15s"}


def principals(found: Any, name: str) -> Any:
    rules = specs(found, "AuthorizationPolicy").get(name, {}).get("rules")
    return None if rules is None else [rule["from"][0]["source"] for rule in rules]


def allow(name: str, target: Any, *sources: tuple[Any, str]) -> dict[str, Any]:
    items = [{"targetRef": source, "default": {"action": action}} for source, action in sources]
    return policy("MeshTrafficPermission", name, targetRef=target, **{"from": items})


EVERYBODY = {"kind": "Mesh"}


def test_with_mtls_nothing_is_allowed_that_no_permission_allows() -> None:
    found = of(MESH, dataplane("web"))
    assert specs(found, "AuthorizationPolicy") == {"allow-nothing": {}}
    assert specs(found, "PeerAuthentication")["default"] == {"mtls": {"mode": "STRICT"}}


def test_one_permission_for_all_is_one_policy() -> None:
    found = of(MESH, dataplane("web"), dataplane("db"), allow("all", EVERYBODY, (EVERYBODY, "Allow")))
    assert principals(found, "kuma-permissions") == [{"namespaces": ["default"]}]


def test_a_permission_of_a_service_counts_before_one_of_the_mesh() -> None:
    found = of(
        MESH,
        dataplane("web"),
        dataplane("db"),
        allow("all", EVERYBODY, (EVERYBODY, "Allow")),
        allow("db", service("db"), (EVERYBODY, "Deny"), (service("web"), "Allow")),
    )
    assert principals(found, "db") == [{"principals": ["cluster.local/ns/default/sa/web"]}]
    assert principals(found, "web") == [{"namespaces": ["default"]}]


def test_a_service_that_is_denied_is_an_exception() -> None:
    found = of(MESH, dataplane("web"), allow("all", EVERYBODY, (EVERYBODY, "Allow"), (service("web"), "Deny")))
    denied = ["cluster.local/ns/default/sa/web"]
    assert principals(found, "kuma-permissions") == [{"namespaces": ["default"], "notPrincipals": denied}]


def test_a_denial_that_cannot_be_said_denies_everybody() -> None:
    tags = {"kind": "MeshSubset", "tags": {"team": "unknown"}}
    found = of(MESH, dataplane("web"), allow("all", EVERYBODY, (EVERYBODY, "Allow"), (tags, "Deny")))
    assert principals(found, "kuma-permissions") is None
    assert any("everybody is denied" in reason for reason in reasons(found).values())


def test_tags_of_clients_are_the_services_that_all_have_them() -> None:
    tags = {"kind": "MeshSubset", "tags": {"team": "shop"}}
    found = of(
        MESH,
        dataplane("web", team="shop"),
        dataplane("api", team="shop"),
        dataplane("api", number=2, team="other"),
        allow("shop", EVERYBODY, (tags, "Allow")),
    )
    assert principals(found, "kuma-permissions") == [{"principals": ["cluster.local/ns/default/sa/web"]}]


def test_identities_of_services_are_principals_and_others_let_nobody_in() -> None:
    exact = {"spiffeID": {"type": "Exact", "value": "spiffe://default/web"}}
    strange = {"spiffeID": {"type": "Prefix", "value": "spiffe://default.zone.mesh.local/ns/a"}}
    rules = [{"default": {"allow": [exact]}}]
    found = of(MESH, dataplane("web"), policy("MeshTrafficPermission", "ids", targetRef=EVERYBODY, rules=rules))
    assert principals(found, "kuma-permissions") == [{"principals": ["cluster.local/ns/default/sa/web"]}]
    rules = [{"default": {"allow": [exact], "deny": [strange]}}]
    found = of(MESH, dataplane("web"), policy("MeshTrafficPermission", "ids", targetRef=EVERYBODY, rules=rules))
    assert principals(found, "kuma-permissions") is None


def test_without_mtls_permissions_are_listed() -> None:
    found = of({"type": "Mesh", "name": "default"}, dataplane("web"), allow("all", EVERYBODY, (EVERYBODY, "Allow")))
    assert specs(found, "AuthorizationPolicy") == {}
    assert specs(found, "PeerAuthentication")["default"] == {"mtls": {"mode": "DISABLE"}}
    assert "MeshTrafficPermission/default/all" in reasons(found)


def test_the_old_form_says_the_same_as_the_new_one() -> None:
    planes = [dataplane("web"), dataplane("api", version="v1"), dataplane("api", number=2, version="v2")]
    conf = {
        "split": [
            {"weight": 90, "destination": {"kuma.io/service": "api", "version": "v1"}},
            {"weight": 10, "destination": {"kuma.io/service": "api", "version": "v2"}},
        ]
    }
    found = of(
        MESH,
        *planes,
        old("TrafficPermission", "web-api", source="web", destination="api"),
        old("TrafficRoute", "canary", conf, destination="api"),
        old("Timeout", "t", {"connectTimeout": "5s", "http": {"requestTimeout": "15s"}}, destination="api"),
        old("Retry", "r", {"http": {"numRetries": 2, "retriableStatusCodes": [502]}}, destination="api"),
        old("CircuitBreaker", "c", {"detectors": {"totalErrors": {"consecutive": 9}}}, destination="api"),
        old("FaultInjection", "f", {"delay": {"percentage": 50, "value": "2s"}}, destination="api"),
        old("HealthCheck", "h", {"interval": "10s", "timeout": "2s", "http": {"path": "/up"}}, destination="api"),
        old("RateLimit", "l", {"http": {"requests": 5, "interval": "10s"}}, destination="api"),
    )
    assert left(found) == []
    assert principals(found, "api") == [{"principals": ["cluster.local/ns/default/sa/web"]}]
    (route,) = specs(found, "VirtualService")["api"]["http"]
    assert [each["weight"] for each in route["route"]] == [90, 10]
    assert (route["timeout"], route["retries"]["retryOn"]) == ("15s", "retriable-status-codes,502")
    assert route["fault"] == {"delay": {"fixedDelay": "2s", "percentage": {"value": 50}}}
    rule = specs(found, "DestinationRule")["api"]
    assert rule["trafficPolicy"]["outlierDetection"] == {"consecutive5xxErrors": 9}
    assert specs(found, "HealthCheck")["api"]["http"] == {"path": "/up"}
    assert specs(found, "LocalRateLimit")["l"]["http"]["limits"] == [{"rate": {"count": 5, "interval": "10s"}}]


@pytest.mark.parametrize("type", NEWER)
def test_an_old_policy_yields_to_a_new_one_of_its_kind(type: str) -> None:
    found = of(MESH, old(type, "old", {}), policy(NEWER[type], "new", targetRef=EVERYBODY))
    assert f"{type}/default/old" in {each.object for each in left(found, needless=True)}


def test_meshes_are_namespaces_that_do_not_see_each_other() -> None:
    other = {**dataplane("web"), "mesh": "payments"}
    found = of(dataplane("web"), other)
    entries = [made.document for made in found.objects if made.document["kind"] == "ServiceEntry"]
    assert {each["metadata"]["namespace"] for each in entries} == {"default", "payments"}
    assert all(each["spec"]["exportTo"] == ["."] for each in entries)


def test_names_of_kuma_on_kubernetes_are_hosts() -> None:
    found = of(dataplane("web_shop_svc_80"))
    (entry,) = specs(found, "ServiceEntry").values()
    assert entry["hosts"] == ["web.shop.svc.80.mesh"]


def test_resources_in_the_form_of_kubernetes_are_read() -> None:
    metadata = {"name": "t", "labels": {"kuma.io/mesh": "default"}}
    item = {"targetRef": service("web"), "default": {"connectionTimeout": "7s"}}
    spec = {"targetRef": EVERYBODY, "to": [item]}
    resource = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": metadata, "spec": spec}
    found = of(dataplane("web"), resource)
    assert specs(found, "DestinationRule")["web"]["trafficPolicy"]["connectionPool"]["tcp"]["connectTimeout"] == "7s"


def test_external_services_are_called_over_tls() -> None:
    found = dump_of("kuma")
    entry = specs(found, "ServiceEntry")["payments"]
    assert (entry["location"], entry["endpoints"][0]["address"]) == ("MESH_EXTERNAL", "api.payments.example")
    assert specs(found, "DestinationRule")["payments"]["trafficPolicy"]["tls"]["sni"] == "api.payments.example"
    assert "ExternalService/default/payments: networking.tls.caCert" in reasons(found)


@pytest.mark.parametrize("type", [*LEFT_TYPES, "Nonsense"])
def test_every_other_type_is_listed(type: str) -> None:
    found = of({"type": type, "name": "x", "mesh": "default"})
    assert [each.object.partition("/")[0] for each in found.untaken] == [type]


@pytest.mark.parametrize("type", TAKEN_TYPES)
def test_a_field_that_nobody_knows_is_listed(type: str) -> None:
    found = of(MESH, {"type": type, "mesh": "default", "name": "x", "spec": {"surprise": {"at": 1}}})
    assert any("surprise" in each.field for each in found.untaken)
