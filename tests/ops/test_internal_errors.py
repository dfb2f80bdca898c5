"""Errors of mesh-pilot itself in generation cost one resource, and everybody who looks learns of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import update_wrapper
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog.testing
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from prometheus_client.parser import text_string_to_metric_families

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.engine import NAME, by_name, derived
from mesh_pilot.engine.failures import Condition
from mesh_pilot.envoy.catalog import generators
from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.envoy.listeners.outbound import listener_plans
from mesh_pilot.envoy.telemetry.tracing import TracingConfig, tracing_config
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.proxy.keys import ProxyFacts, ProxyKeys, proxy_keys
from mesh_pilot.mesh.proxy.plans import Plan, single_shard
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, item_key
from mesh_pilot.model.resource import CLUSTER, LISTENER, SECRET, Resource, make_resource
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.world import View
from mesh_pilot.xds.ads.messages import Variant
from tests.support.envoy import eventually
from tests.support.envoy_model import EnvoyModel
from tests.support.planes import SERVICE, running_plane
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
BAD = SERVICE.replace("10.0.0.1", "10.0.0.66")
KEY = ServiceKey("reviews.test", "shop")
NARROW = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: shop}
spec: {egress: [{hosts: ["./*"]}]}
"""


@derived
def inner(view: View) -> str:
    address = view.endpoints(KEY)[0].address
    if address == "10.0.0.66":
        raise KeyError("port")
    return address


@derived
def fragile(view: View, name: str) -> Resource:
    """A resource that cannot be made while the service is bad."""
    return make_resource(name, CLUSTER, inner(view).encode(), (ConfigKey("ServiceEntry", "shop", "reviews"),))


@derived
def sturdy(view: View, name: str) -> Resource:
    return make_resource(name, CLUSTER, b"")


@derived
def plan(view: View) -> Plan:
    return {"fragile": fragile.query("fragile"), "sturdy": sturdy.query("sturdy")}


@derived
def fragile_plan(view: View) -> Plan:
    inner(view)
    return plan(view)


class Opened:
    """Proxies whose clusters come from a plan of this file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str, planned: Any = plan) -> None:
        parts = {
            CLUSTER: ((CLUSTER, single_shard.query(planned.query())),),
            SECRET: ((SECRET, by_name(fragile.query(NAME))),),
        }
        monkeypatch.setattr(generators, "generators_of", lambda target: parts)
        self.world = world_of(text)
        self.catalog = WorldCatalog(self.world)
        self.proxies = [self.open(name) for name in ("a", "b")]

    def open(self, name: str) -> WorldResources:
        return self.catalog.open(sidecar(name=name, namespace="shop"))

    def names(self, proxy: int = 0) -> set[str]:
        clusters = self.proxies[proxy].set(CLUSTER)
        assert clusters is not None
        return set(clusters.snapshot().entries)

    def failure(self) -> StandingFailure:
        (standing,) = self.catalog.failures()
        return standing


def test_a_missing_resource_is_listed_with_its_error_and_the_proxies_that_lack_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened(monkeypatch, BAD)
    assert [opened.names(0), opened.names(1)] == [{"sturdy"}, {"sturdy"}]
    held = opened.failure()
    assert (held.failure.name, held.failure.error) == ("fragile", "KeyError: 'port'")
    assert held.failure.state is Condition.MISSING
    assert held.failure.place.startswith("test_internal_errors.py, line ")
    assert held.failure.place.endswith(" in inner")
    assert held.proxies == ("a.shop", "b.shop")


def test_one_that_worked_before_stays_and_says_what_it_was_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, SERVICE)
    assert opened.names() == {"fragile", "sturdy"}
    assert opened.catalog.failures() == []
    update(opened.world, BAD)
    assert opened.names() == {"fragile", "sturdy"}
    held = opened.failure()
    assert (held.failure.state, held.failure.configs) == (Condition.STALE, ("ServiceEntry/shop/reviews",))
    assert held.proxies == ("a.shop",), "the other has not asked"
    update(opened.world, SERVICE)
    opened.names()
    assert opened.catalog.failures() == []
    assert opened.catalog.failed.total == {"CDS": 1}


def test_a_plan_that_fails_is_listed_too_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with structlog.testing.capture_logs() as logs:
        opened = Opened(monkeypatch, SERVICE, fragile_plan)
        assert opened.names() == {"fragile", "sturdy"}
        update(opened.world, BAD)
        for _ in range(3):
            assert opened.names() == {"fragile", "sturdy"}
            update(opened.world, BAD.replace("version: v1", "version: v2"))
            update(opened.world, BAD)
    plan_failure = next(held.failure for held in opened.catalog.failures() if held.failure.is_plan)
    assert (plan_failure.name, plan_failure.state) == ("fragile_plan", Condition.STALE)
    assert [(line["name"], line["event"]) for line in logs if line["log_level"] == "error"] == [
        ("fragile_plan", "internal error: something stays as it was"),
        ("fragile", "internal error: something stays as it was"),
    ]


def test_of_resources_by_name_only_those_who_ask_are_concerned(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, BAD)
    for number, proxy in enumerate(opened.proxies):
        proxy.requested = lambda _, number=number: frozenset({f"secret-{number}"})
        secrets = proxy.set(SECRET)
        assert secrets is not None
        assert secrets.get(f"secret-{number}") is None
    found = {held.failure.name: held.proxies for held in opened.catalog.failures()}
    assert found == {"secret-0": ("a.shop",), "secret-1": ("b.shop",)}


def test_nobody_is_concerned_any_more_when_the_proxies_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, BAD)
    opened.names()
    opened.proxies[0].close()
    assert opened.catalog.failures() == []


class Web:
    def __init__(self, plane: ControlPlane, client: httpx.AsyncClient) -> None:
        self.plane = plane
        self.client = client

    async def get(self, path: str, *, monitoring: bool = False) -> str:
        address = self.plane.addresses.monitoring if monitoring else self.plane.addresses.http
        reply = await self.client.get(f"http://{address}{path}")
        assert reply.status_code == 200
        return reply.text

    async def metrics(self) -> dict[tuple[str, ...], float]:
        text = await self.get("/metrics")
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> AsyncIterator[Web]:
    """A control plane whose cluster for one proxy fails."""
    parts = {CLUSTER: ((CLUSTER, single_shard.query(plan.query())),)}
    monkeypatch.setattr(generators, "generators_of", lambda target: parts)
    (tmp_path / "a.yaml").write_text(BAD)

    async def proxy(address: str, *, task_status: trio.TaskStatus[None]) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
            node = ParseDict(EnvoyNode("web-1", "shop", "10.9.9.9").to_dict(), Node())
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            response = await call.recv_message()
            assert response is not None
            assert len(response.resources) == 1, "the others come"
            await call.send_message(DiscoveryRequest(type_url=CLUSTER, response_nonce=response.nonce))
            task_status.started()
            await trio.sleep_forever()

    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        await nursery.start(proxy, plane.addresses.grpc)
        yield Web(plane, client)


@pytest.mark.plane
async def test_readiness_the_debug_pages_and_metrics_show_it(web: Web, tmp_path: Path) -> None:
    short = "internal errors: 1 missing; see /debug/rejections on the web port"
    assert (await web.get("/ready")).splitlines() == ["ready", short]
    assert (await web.get("/ready?verbose", monitoring=True)).splitlines() == ["ready", short], "no content there"
    consequence = "is missing at proxies that did not have it before"
    named = f"  CDS fragile {consequence} (web-1.shop): KeyError: 'port'"
    assert (await web.get("/ready?verbose")).splitlines() == ["ready", short, named]
    (entry,) = json.loads(await web.get("/debug/rejections"))["internal"]
    assert (entry["type"], entry["resource"], entry["error"]) == ("CDS", "fragile", "KeyError: 'port'")
    assert (entry["state"], entry["consequence"]) == ("missing", consequence)
    assert (entry["proxies"], entry["proxies_in_all"]) == (["web-1.shop"], 1)
    (stream,) = json.loads(await web.get("/debug/syncz"))
    assert [(each["failure"], each["error"]) for each in stream["failing"]] == [
        (f"CDS fragile {consequence}", "KeyError: 'port'")
    ]
    found = await web.metrics()
    assert found["pilot_total_xds_internal_errors",] == 1
    assert found["mesh_pilot_failing_resources", "missing", "cds"] == 1
    assert found["mesh_pilot_failing_resources", "stale", "cds"] == 0
    assert found["mesh_pilot_failing_resources", "missing", "lds"] == 0
    (tmp_path / "a.yaml").write_text(SERVICE)

    async def recovered() -> bool:
        return await web.get("/ready") == "ready\n"

    await eventually(recovered)
    found = await web.metrics()
    assert found["pilot_total_xds_internal_errors",] == 1
    assert found["mesh_pilot_failing_resources", "missing", "cds"] == 0


@pytest.mark.plane
async def test_a_part_that_fails_while_it_is_looked_at_costs_its_list(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(diagnostics: Diagnostics) -> dict[str, Any]:
        raise IndexError("boom")

    monkeypatch.setattr(Diagnostics, "conflicts", broken)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            found = await web.metrics()
            assert found["mesh_pilot_missing_metrics",] == 1
            assert found["pilot_xds_pushes", "cds"] == 1
            rejections = json.loads(await web.get("/debug/rejections"))
            assert rejections["listeners"] == [{"error": "cannot be listed: IndexError: boom"}]
            assert len(rejections["internal"]) == 1
    assert sorted(line["event"] for line in logs if line["log_level"] == "error") == [
        "cannot collect a group of metrics",
        "cannot list rejections",
    ]


def test_a_resource_without_an_optional_part_is_listed_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tracing_config.compute

    def tracing(view: View, context: PolicyContext) -> TracingConfig:
        if view.endpoints(KEY)[0].address == "10.0.0.66":
            raise KeyError("spans")
        return original(view, context)

    monkeypatch.setattr(tracing_config, "compute", update_wrapper(tracing, original))
    world = world_of(SERVICE)
    catalog = WorldCatalog(world)
    listeners = [catalog.open(sidecar(name=name)).set(LISTENER) for name in ("a", "b")]

    def look() -> list[StandingFailure]:
        assert all(each is not None and each.snapshot() for each in listeners)
        return catalog.failures()

    assert look() == []
    with structlog.testing.capture_logs() as logs:
        update(world, BAD)
        for _ in range(2):
            held = {standing.failure.name: standing for standing in look()}["0.0.0.0_9080"]
            assert str(held.failure) == "LDS 0.0.0.0_9080 is served without tracing_config"
            assert (held.failure.error, held.proxies) == ("KeyError: 'spans'", ("a.default", "b.default"))
    event = "internal error: something is served without an optional part"
    assert [line["event"] for line in logs if line["name"] == "0.0.0.0_9080"] == [event]
    update(world, SERVICE)
    assert look() == []


def test_a_proxy_whose_keys_cannot_be_made_keeps_what_it_has_and_a_new_one_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = proxy_keys.compute

    def compute(view: View, facts: ProxyFacts) -> ProxyKeys:
        inner.compute(view)
        return original(view, facts)

    monkeypatch.setattr(proxy_keys, "compute", compute)
    world = world_of(SERVICE)
    catalog = WorldCatalog(world)
    old = EnvoyModel(catalog, sidecar(name="old"), Variant.SOTW)
    old.settle()
    held = old.held
    update(world, BAD)
    old.settle()
    assert old.held.keys() == held.keys()
    new = EnvoyModel(catalog, sidecar(name="new"), Variant.SOTW)
    assert new.stream.next_response() is None
    assert sorted(str(standing.failure) for standing in catalog.failures()) == [
        "proxy new.default is sent nothing yet",
        "proxy old.default is served as if it had not changed",
    ]
    assert catalog.diagnostics().patches() == {}
    update(world, SERVICE)
    for model in (old, new):
        model.settle()
        assert model.held == held
    assert catalog.failures() == []


@pytest.mark.parametrize("variant", Variant)
def test_a_new_scope_that_cannot_be_made_leaves_the_proxy_what_it_had(
    variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the very Sidecar that begins to select it is what our code fails at."""
    original = listener_plans.compute

    def compute(view: View, scope: OutboundScope, *args: Any) -> Any:
        if scope.sidecar is not None:
            raise KeyError("port")
        return original(view, scope, *args)

    monkeypatch.setattr(listener_plans, "compute", compute)
    world = world_of(SERVICE)
    catalog = WorldCatalog(world)
    model = EnvoyModel(catalog, sidecar(namespace="shop"), variant)
    model.settle()
    held = model.held
    update(world, NARROW)
    model.settle()
    assert model.held[LISTENER] == held[LISTENER]
    assert {standing.failure.state for standing in catalog.failures()} == {Condition.MISSING}
    world.apply([Delete(SOURCE, item_key(configs(NARROW)[0]))])
    model.settle()
    assert model.held == held
    assert catalog.failures() == []
