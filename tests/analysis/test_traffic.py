"""What no traffic has used: services, subsets, VirtualServices, rules of policies; and what nobody can tell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.explain.analysis.traffic import SeenTraffic, length_of
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world import World
from tests.support.command import mesh_pilot
from tests.support.planes import SERVICE, running_plane
from tests.support.routing import config, service, virtual_service
from tests.support.traffic_counts import reporting, row
from tests.support.worlds import sidecar, world_of

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
CALLER = CallingWorkload("shop", "web")
APP = sidecar("10.1.0.5", name="app-1", namespace="shop", labels={"app": "app"}, RBAC_RULE_STATS="true")
DAYS = "7 days"


def found(world: World, *names: str, proxies: Iterable[Proxy] = (), silent: Iterable[Proxy] = ()) -> list[str]:
    """The messages about traffic when these clusters, and rules of policies, were used in a week."""
    edges = [
        WorkloadEdge(CALLER, RowKind.POLICY if name.startswith("ns[") else RowKind.CLUSTER, name, counts)
        for name in names
        if (counts := Counts({Counter.DENIED if name.startswith("ns[") else Counter.REQUESTS: 1}, has_requests=True))
    ]
    proxies = tuple(proxies)
    reporting = frozenset(each.id for each in proxies if each not in silent)
    seen = SeenTraffic(NOW - timedelta(days=7), NOW, reporting, iter(edges))
    messages = analyze_picture(picture_of(world, proxies, traffic=seen))
    wanted = {f"MP00{number}" for number in range(42, 47)}
    return [f"{m.type.code} {m.object} {m.path}: {m.text}" for m in messages if m.type.code in wanted]


HOST = "{}.shop.svc.cluster.local"
MESH = service("reviews") + service("idle")


def test_a_service_that_was_not_called_is_told_with_the_host_that_declares_it() -> None:
    world = world_of(MESH)
    told = f"no proxy has counted a call of {HOST.format('idle')} for {DAYS}"
    name = f"ServiceEntry/shop/{HOST.format('idle')}"
    assert found(world, f"outbound|80|v1|{HOST.format('reviews')}") == [f"MP0042 {name} spec.hosts[0]: {told}"]
    (with_silent,) = found(world, f"outbound|80||{HOST.format('reviews')}", proxies=[APP], silent=[APP])
    assert with_silent.endswith(f"for {DAYS} (1 of 1 proxies do not report)")
    assert not [m for m in analyze_picture(picture_of(world)) if m.type.code == "MP0042"]


SUBSETS = config("DestinationRule", "reviews", "{host: reviews, subsets: [{name: v1}, {name: v2}]}")


def test_a_subset_is_told_where_its_service_was_called() -> None:
    world = world_of(service("reviews") + SUBSETS)
    told = f"no proxy has counted a call of subset v2 of {HOST.format('reviews')} for {DAYS}"
    assert found(world, f"outbound|80|v1|{HOST.format('reviews')}") == [
        f"MP0043 DestinationRule/shop/reviews spec.subsets[1].name: {told}"
    ]
    assert [each[:6] for each in found(world)] == ["MP0042"]


ROUTES = {
    "of a subset": "{hosts: [a.example], http: [{route: [{destination: {host: reviews, subset: v2}}]}]}",
    "of TCP": "{hosts: [a.example], tcp: [{route: [{destination: {host: idle}}]}]}",
    "of a delegate": "{hosts: [a.example], http: [{delegate: {name: inner, namespace: shop}}]}",
}
INNER = virtual_service("inner", "{http: [{route: [{destination: {host: idle}}]}]}")


@pytest.mark.parametrize("how", ROUTES)
def test_a_virtual_service_is_told_if_none_of_its_destinations_was_called(how: str) -> None:
    world = world_of(MESH + SUBSETS + virtual_service("a", ROUTES[how]) + INNER)
    told = [each for each in found(world, f"outbound|80|v1|{HOST.format('reviews')}") if each.startswith("MP0044")]
    reason = f"no proxy has counted a call of any of its destinations for {DAYS}"
    assert f"MP0044 VirtualService/shop/a spec.hosts: {reason}" in told
    used = [f"outbound|80|v2|{HOST.format('reviews')}", f"outbound|80||{HOST.format('idle')}"]
    assert not [each for each in found(world, *used) if each.startswith("MP0044")]


def test_what_only_redirects_is_counted_by_nothing_and_not_told() -> None:
    world = world_of(virtual_service("a", "{hosts: [a.example], http: [{redirect: {uri: /b}}]}"))
    assert found(world) == []


def policy(action: str, *, dry_run: bool = False) -> str:
    text = config(
        "AuthorizationPolicy", "p", f"{{action: {action}, rules: [{{to: [{{operation: {{paths: [/a]}}}}]}}, {{}}]}}"
    )
    text = text.replace("networking.istio.io", "security.istio.io")
    return text.replace("metadata: {", "metadata: {annotations: {istio.io/dry-run: 'true'}, ") if dry_run else text


@pytest.mark.parametrize("action", ["DENY", "ALLOW"])
def test_a_rule_that_no_request_met_is_told_where_rules_are_counted(action: str) -> None:
    world = world_of(policy(action))
    assert found(world, "ns[shop]-policy[p]-rule[1]", proxies=[APP]) == [
        f"MP0045 AuthorizationPolicy/shop/p spec.rules[0]: no request has met its rule 0 for {DAYS}"
    ]
    both = ("ns[shop]-policy[p]-rule[0]", "ns[shop]-policy[p]-rule[1]")
    assert found(world, *both, proxies=[APP]) == []
    assert found(world) == []  # it selects nobody
    assert found(world_of(policy(action, dry_run=True)), proxies=[APP]) == []
    assert found(world_of(policy("AUDIT")), proxies=[APP]) == []


def test_where_rules_are_not_counted_that_is_said_and_nothing_guessed() -> None:
    plain = attrs.evolve(APP, id=APP.id.replace("app-1", "app-2"), name="app-2.shop", metadata={"NAMESPACE": "shop"})
    told = "unknown if requests meet its rules: app-2.shop does not count them"
    world = world_of(policy("DENY"))
    assert found(world, proxies=[APP, plain]) == [f"MP0046 AuthorizationPolicy/shop/p : {told}"]
    (silent,) = found(world, proxies=[APP], silent=[APP])
    assert "app-1.shop does not count them" in silent
    both = ("ns[shop]-policy[p]-rule[0]", "ns[shop]-policy[p]-rule[1]")
    assert found(world, *both, proxies=[APP, plain]) == []


def test_lengths_of_time_are_for_people() -> None:
    given = [timedelta(minutes=1), timedelta(minutes=90), timedelta(hours=30), timedelta(days=31)]
    assert [length_of(each) for each in given] == ["1 minute", "90 minutes", "30 hours", "31 days"]


@pytest.mark.plane
async def test_a_live_plane_is_asked_with_a_flag(tmp_path: Path) -> None:
    (tmp_path / "services.yaml").write_text(SERVICE)
    async with running_plane(tmp_path) as plane:

        async def analyze(*flags: str) -> str:
            arguments = ("analyze", *flags, "--pilot", plane.addresses.http or "")
            done = await trio.to_thread.run_sync(lambda: mesh_pilot(*arguments))
            return done.out + done.err

        assert "0 errors, 0 warnings" in await analyze()
        traffic = plane.state.traffic
        assert traffic is not None
        traffic.table.add(reporting(), [row("outbound|80||other.test", requests=1)], of_agent=True)
        told = await analyze("--traffic", "--days", "2")
        assert "no proxy has counted a call of reviews.test for 0 minutes" in told
        assert "[MP0042]" in told
        assert "1 info" in told
        assert "name no FILE" in await analyze("--traffic", str(tmp_path))
        traffic.table.add(reporting(), [row("outbound|9080||reviews.test", requests=1)], of_agent=True)
        assert "MP0042" not in await analyze("--traffic")
