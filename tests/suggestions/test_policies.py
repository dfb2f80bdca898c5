"""AuthorizationPolicies made of calls: who called is admitted at the ports that were used, and who can't be told is not
shut out in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.observed import Observed, Suggestion, Suggestions
from mesh_pilot.explain.suggestions.policies import suggest_policies
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world import World
from tests.suggestions.test_sidecars import seen, workload
from tests.support.routing import config
from tests.support.worlds import sidecar, world_of

APP = "10.1.0.5"
OTHER = "10.1.0.6"


def app(name: str = "app", *, mtls: bool = True, endpoints: Sequence[str] = (APP,), port: str = "80") -> str:
    """A service with endpoints at port 8080, and mTLS there; the second is of another version."""
    label = ", security.istio.io/tlsMode: istio" if mtls else ""
    listed = ", ".join(
        f"{{address: {each}, labels: {{app: {name}, version: v{version}{label}}}, ports: {{http: 8080}}}}"
        for version, each in enumerate(endpoints, 1)
    )
    return config(
        "ServiceEntry",
        name,
        f"{{hosts: [{name}.shop.svc.cluster.local], location: MESH_INTERNAL, resolution: STATIC,"
        f" ports: [{{number: {port}, name: http, protocol: HTTP}}], endpoints: [{listed}]}}",
    )


def proxy(name: str, ip: str, namespace: str = "shop", **more: Any) -> Proxy:
    found = sidecar(ip, name=f"{name}-1", namespace=namespace, **{"labels": {"app": name}, **more})
    return attrs.evolve(found, identity=f"spiffe://cluster.local/ns/{namespace}/sa/{name}" if found.identity else "")


SERVER = proxy("app", APP)
WEB, TELLER = proxy("web", "10.1.0.1"), proxy("teller", "10.1.0.2", "bank")
CLUSTER = "outbound|80||app.shop.svc.cluster.local"


def with_arrivals(observed: Observed, server: Proxy, number: int, name: str = "inbound|8080||") -> Observed:
    counts = Counts({Counter.REQUESTS: number}, has_requests=True)
    edge = WorkloadEdge(workload(server), RowKind.CLUSTER, name, counts)
    return attrs.evolve(observed, edges=(*observed.edges, edge))


def suggested(world: World, observed: Observed, *proxies: Proxy) -> Suggestions:
    return suggest_policies(world.view, [ConnectedProxy(each) for each in proxies], observed)


def only(found: Suggestions) -> Suggestion:
    (one,) = found.objects
    return one


def rules(found: Suggestions) -> Any:
    return to_json(only(found).config.spec)["rules"]


def test_the_principals_of_callers_are_allowed_at_the_workloads_port() -> None:
    observed = with_arrivals(seen({WEB: [CLUSTER], TELLER: [CLUSTER]}, SERVER), SERVER, 10)
    found = suggested(world_of(app()), observed, SERVER, WEB, TELLER)
    assert str(only(found).config.key) == "AuthorizationPolicy/shop/app"
    assert to_json(only(found).config.spec) == {
        "selector": {"matchLabels": {"app": "app"}},
        "rules": [
            {
                "from": [
                    {"source": {"principals": ["cluster.local/ns/bank/sa/teller", "cluster.local/ns/shop/sa/web"]}}
                ],
                "to": [{"operation": {"ports": ["8080"]}}],
            }
        ],
    }
    assert not only(found).notes
    assert {(each.workload, each.reason) for each in found.skipped} == {
        ("bank/teller", "no proxy counted a call of it"),
        ("shop/web", "no proxy counted a call of it"),
    }


OPEN = [{"to": [{"operation": {"ports": ["8080"]}}]}]


def security(kind: str, name: str, spec: str) -> str:
    return config(kind, name, spec).replace("networking.istio.io", "security.istio.io")


PLAIN = {
    "an endpoint without mTLS": "",
    "a PeerAuthentication": security("PeerAuthentication", "plain", "{mtls: {mode: DISABLE}}"),
    "a DestinationRule": config("DestinationRule", "plain", "{host: app, trafficPolicy: {tls: {mode: DISABLE}}}"),
}


@pytest.mark.parametrize("why", PLAIN)
def test_a_port_that_is_called_without_mtls_stays_open(why: str) -> None:
    more = PLAIN[why]
    found = suggested(world_of(app(mtls=bool(more)) + more), seen({WEB: [CLUSTER]}, SERVER), SERVER, WEB)
    assert rules(found) == OPEN
    assert "Port 8080 stays open: shop/web calls it without mTLS, so no rule can name it." in only(found).notes


def test_calls_from_outside_the_mesh_keep_a_port_open() -> None:
    observed = with_arrivals(seen({WEB: [CLUSTER]}, SERVER), SERVER, 105)
    found = suggested(world_of(app()), observed, SERVER, WEB)
    assert rules(found) == OPEN
    assert only(found).notes == ["Port 8080 stays open: 100 calls more arrived than proxies say that they sent."]
    unknown = suggested(world_of(app()), seen({WEB: [CLUSTER]}, SERVER), SERVER, WEB)
    assert rules(unknown) != OPEN
    assert only(unknown).notes == [
        "Nothing counts what arrives at port 8080: callers outside the mesh would be refused."
    ]


def test_retries_arrive_too_and_what_other_workloads_of_the_service_got_is_theirs() -> None:
    second = proxy("app", OTHER, labels={"app": "app", "version": "v2"})
    observed = seen({}, SERVER, WEB, second)
    called = Counts({Counter.REQUESTS: 100, Counter.RETRIES: 60}, has_requests=True)
    observed = attrs.evolve(observed, edges=(WorkloadEdge(workload(WEB), RowKind.CLUSTER, CLUSTER, called),))
    observed = with_arrivals(with_arrivals(observed, SERVER, 80), second, 80)
    found = suggested(world_of(app(endpoints=[APP, OTHER])), observed, SERVER, second, WEB)
    assert only(found).notes == ["For app: one selector finds all of them."]
    assert only(found).proxies == ("app-1.shop", "app-1.shop")


def test_callers_without_an_agent_have_attempts_and_are_added_to_those_with_one() -> None:
    attempts = WorkloadEdge(workload(TELLER), RowKind.CLUSTER, CLUSTER, Counts({Counter.ATTEMPTS: 100}))
    observed = with_arrivals(seen({WEB: [CLUSTER]}, SERVER, TELLER), SERVER, 105)
    observed = attrs.evolve(observed, edges=(*observed.edges, attempts))
    assert not only(suggested(world_of(app()), observed, SERVER, WEB, TELLER)).notes


def test_a_caller_of_unknown_identity_is_admitted_with_its_namespace() -> None:
    caller = CallingWorkload("bank", "job", "", (("app", "job"),))
    observed = with_arrivals(seen({WEB: [CLUSTER]}, SERVER), SERVER, 10)
    edge = WorkloadEdge(caller, RowKind.CLUSTER, CLUSTER, Counts({Counter.ATTEMPTS: 5}))
    found = suggested(world_of(app()), attrs.evolve(observed, edges=(*observed.edges, edge)), SERVER, WEB)
    assert rules(found)[0]["from"][1] == {"source": {"namespaces": ["bank"]}}
    assert only(found).why == {"bank": "the identity of bank/job is unknown"}


def test_a_gateway_is_a_caller_and_is_said_to_be_one() -> None:
    edge = proxy("edge", "10.9.9.9", "edge", node_type="router")
    observed = with_arrivals(seen({edge: [CLUSTER]}, SERVER), SERVER, 5)
    found = suggested(world_of(app()), observed, SERVER, edge)
    assert only(found).why == {"cluster.local/ns/edge/sa/edge": "a gateway: any client that it lets in"}


def test_nothing_is_suggested_where_users_allow_already_or_a_proxy_is_silent() -> None:
    own = security("AuthorizationPolicy", "mine", "{rules: [{}]}")
    found = suggested(world_of(app() + own), seen({WEB: [CLUSTER]}, SERVER), SERVER, WEB)
    assert ("shop/app", "AuthorizationPolicy/shop/mine allows calls already") in {
        (each.workload, each.reason) for each in found.skipped
    }
    second = proxy("app", OTHER)
    found = suggested(world_of(app()), seen({WEB: [CLUSTER], second: []}, SERVER, silent=[second]), SERVER, WEB, second)
    assert not found.objects
    denying = own.replace("{rules: [{}]}", "{action: DENY, rules: [{}]}")
    assert suggested(world_of(app() + denying), seen({WEB: [CLUSTER]}, SERVER), SERVER, WEB).objects


def test_ports_that_no_service_declares_are_said() -> None:
    observed = with_arrivals(seen({WEB: [CLUSTER]}, SERVER), SERVER, 5)
    found = suggested(world_of(app()), with_arrivals(observed, SERVER, 7, "InboundPassthroughCluster"), SERVER, WEB)
    assert only(found).notes == ["Calls came to ports that no service declares: they would be refused."]


def test_a_workload_is_selected_by_the_labels_of_its_registry() -> None:
    server = proxy("app", APP, labels={"app": "other"})
    observed = with_arrivals(seen({WEB: [CLUSTER]}, server), server, 5)
    found = suggested(world_of(app()), observed, server, WEB)
    assert to_json(only(found).config.spec)["selector"] == {"matchLabels": {"app": "app"}}
    assert only(found).proxies == ("app-1.shop",)
