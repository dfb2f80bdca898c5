"""DestinationRules at work in a real Envoy: which endpoint a request goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import attrs
import httpx
import pytest

from mesh_pilot.model.service import Locality
from tests.support.backends import EJECT, Mesh, backends, unretried
from tests.support.echo import Backend, failing
from tests.support.envoy import eventually
from tests.support.manifests import at, routes, rule, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
BALANCERS = {
    "simple: ROUND_ROBIN": (10, 10),
    "simple: LEAST_REQUEST": (1, 19),
    "simple: RANDOM": (1, 19),
    "simple: ROUND_ROBIN, warmup: {duration: 1s, minimumPercent: 50, aggression: 1}": (1, 19),
    "warmupDurationSecs: 1s": (1, 19),
}
"""A load balancer, and how few and how many of 20 requests each of two endpoints may get."""


async def test_simple_load_balancers_use_all_endpoints(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b") as (mesh, (a, b)):
        hosts = {f"case-{n}.test": balancer for n, balancer in enumerate(BALANCERS)}
        await mesh.apply(
            "".join(service(h, port, at(a), at(b)) + rule(h, f"loadBalancer: {{{lb}}}") for h, lb in hosts.items())
        )
        await mesh.envoy(CLIENT)
        wrong = []
        for host, balancer in hosts.items():
            names = await Mesh(mesh, port).names(host)
            least, most = BALANCERS[balancer]
            if not all(least <= names.count(name) <= most for name in ("a", "b")):
                wrong.append((balancer, names))
            if most == 10 and any(one == following for one, following in pairwise(names)):
                wrong.append((balancer, names))
        assert wrong == []


HASHES: dict[str, Callable[[int], Mapping[str, object]]] = {
    "httpHeaderName: x-user": lambda user: {"headers": {"x-user": f"u{user}"}},
    "httpQueryParameterName: user": lambda user: {"path": f"/?user=u{user}"},
    "httpCookie: {name: user}": lambda user: {"headers": {"cookie": f"user=u{user}"}},
}
KINDS = ("", ", ringHash: {minimumRingSize: 256}", ", maglev: {tableSize: 65537}", ", maglev: {tableSize: 101}")


async def test_requests_with_the_same_hash_key_go_to_the_same_endpoint(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        cases = {
            f"case-{n}.test": (key, kind)
            for n, (key, kind) in enumerate((key, kind) for key in HASHES for kind in KINDS)
        }
        config = ""
        for host, (key, kind) in cases.items():
            config += service(host, port, *map(at, found))
            config += rule(host, f"loadBalancer: {{consistentHash: {{{key}{kind}}}}}")
        await mesh.apply(config)
        await mesh.envoy(CLIENT)
        wrong = []
        for host, (key, kind) in cases.items():
            chosen = [set(await Mesh(mesh, port).names(host, 3, **HASHES[key](user))) for user in range(12)]
            if any(len(names) != 1 for names in chosen) or len(set().union(*chosen)) == 1:
                wrong.append((key, kind, chosen))
        assert wrong == []


async def test_an_endpoint_that_comes_is_part_of_the_ring(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b") as (mesh, found):
        first, second = map(at, found)
        hashed = rule("shop.test", "loadBalancer: {consistentHash: {httpHeaderName: x-user}}")
        await mesh.apply(service("shop.test", port, first) + hashed)
        await mesh.envoy(CLIENT)
        users = [{"x-user": f"user-{number}"} for number in range(24)]
        one = Mesh(mesh, port)
        assert {name for user in users for name in await one.names("shop.test", 1, headers=user)} == {"a"}
        await mesh.apply(service("shop.test", port, first, second) + hashed)
        assert {name for user in users for name in await one.names("shop.test", 1, headers=user)} == {"a", "b"}


async def test_a_client_without_the_cookie_is_given_one_that_sticks(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    cookie = "{name: session, path: /shop, ttl: 60s, attributes: [{name: SameSite, value: Strict}]}"
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        await mesh.apply(
            service("shop.test", port, *map(at, found))
            + rule("shop.test", f"loadBalancer: {{consistentHash: {{httpCookie: {cookie}}}}}")
        )
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        seen = set()
        for _ in range(12):
            mesh.client.cookies.clear()
            first = await one.ask("shop.test", headers={"connection": "close"})
            given = first.headers["set-cookie"]
            assert "Max-Age=60" in given and "Path=/shop" in given and "SameSite=Strict" in given
            mesh.client.cookies.clear()
            again = await one.names("shop.test", 4, headers={"cookie": given.partition(";")[0]})
            assert set(again) == {first.json()["name"]}
            seen |= set(again)
        assert len(seen) > 1


async def test_connections_and_requests_of_one_address_go_to_the_same_endpoint(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        balanced = "loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 65537}}}"
        await mesh.apply(service("shop.test", port, *map(at, found)) + rule("shop.test", balanced))
        await mesh.envoy(CLIENT)
        chosen = []
        for client in range(20, 32):
            transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{client}")
            async with httpx.AsyncClient(transport=transport, timeout=60) as asking:
                headers = {"host": "shop.test", "connection": "close"}
                replies = [await asking.get(f"http://127.0.0.1:{port}/", headers=headers) for _ in range(3)]
                chosen.append({reply.json()["name"] for reply in replies})
        assert all(len(names) == 1 for names in chosen) and len(set().union(*chosen)) > 1, chosen


async def test_a_request_with_a_hash_is_tried_again_where_the_hash_says(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        config = ""
        for host, more in (("same.test", ""), ("other.test", ", retryIgnorePreviousHosts: true")):
            config += service(host, port, *map(at, found))
            config += rule(host, "loadBalancer: {consistentHash: {httpHeaderName: x-user}}")
            retries = f"{{attempts: 1, retryOn: '503', backoff: 1ms{more}}}"
            config += routes(host, f"- {{retries: {retries}, route: [{{destination: {{host: {host}}}}}]}}")
        await mesh.apply(config)
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        for host in ("same.test", "other.test"):
            again = []
            for user in range(6):
                headers = {"x-user": f"u{user}"}
                (name,) = await one.names(host, 1, headers=headers)
                chosen = next(backend for backend in found if backend.name == name)
                chosen.answer = failing(503)
                again.append(await one.names(host, 1, f"/{user}", headers=headers) == [name])
                chosen.answer = None
            assert again == [host == "same.test"] * 6


async def test_localities_have_no_shares_unless_the_rule_gives_them_some(tmp_path: Path, free_ports: Ports) -> None:
    """Where endpoints of one are out of service, the others all get as much as before, wherever they are."""
    (port,) = free_ports(1)
    async with backends(tmp_path, "bad", "near", "far") as (mesh, found):
        places = {"bad": "eu/eu-1", "near": "eu/eu-1", "far": "us/us-1"}
        by_name = {backend.name: backend for backend in found}
        await mesh.apply(
            placed("shop.test", port, by_name, **places)
            + rule("shop.test", f"outlierDetection: {EJECT}\nloadBalancer: {{simple: ROUND_ROBIN}}")
            + unretried("shop.test")
        )
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        by_name["bad"].answer = lambda request, body: (503, {})

        async def thrown_out() -> bool:
            return set(await one.names("shop.test", 6)) == {"near", "far"}

        await eventually(thrown_out, what="the bad endpoint is out")
        counts = Counter(await one.names("shop.test", 60))
        assert abs(counts["near"] - counts["far"]) <= 2, counts


PLACES = {"here": "eu/eu-1/rack-1", "zone": "eu/eu-1/rack-2", "region": "eu/eu-2/rack-1", "far": "us/us-1/rack-1"}
AT_HOME = attrs.evolve(CLIENT, locality=Locality("eu", "eu-1", "rack-1"))


def placed(host: str, port: int, found: Mapping[str, Backend], **places: str) -> str:
    return service(host, port, *(at(found[name], locality=where) for name, where in places.items()))


async def test_endpoints_fail_over_to_the_next_nearest(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *PLACES) as (mesh, backs):
        found = dict(zip(PLACES, backs, strict=True))
        await mesh.apply(
            placed("shop.test", port, found, **PLACES)
            + rule("shop.test", f"outlierDetection: {EJECT}")
            + unretried("shop.test")
        )
        await mesh.envoy(AT_HOME)
        one = Mesh(mesh, port)
        for place in PLACES:
            await one.until_only("shop.test", place)
            found[place].answer = lambda request, body: (503, {})
            assert await one.names("shop.test", 1) == ["503"]


async def test_labels_of_its_place_say_where_a_proxy_is(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "here", "far") as (mesh, backs):
        found = {backend.name: backend for backend in backs}
        await mesh.apply(
            placed("shop.test", port, found, here=PLACES["here"], far=PLACES["far"])
            + rule("shop.test", f"outlierDetection: {EJECT}")
        )
        labels = {"topology.kubernetes.io/region": "us", "topology.kubernetes.io/zone": "us-1"}
        await mesh.envoy(attrs.evolve(AT_HOME, labels=labels))
        assert set(await Mesh(mesh, port).names("shop.test", 8)) == {"far"}


async def test_the_mesh_says_where_requests_go_when_a_region_fails(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    mesh_wide = "localityLbSetting: {failover: [{from: eu, to: asia}]}"
    async with backends(tmp_path, "here", "us", "asia", mesh=mesh_wide) as (mesh, backs):
        found = dict(zip(("here", "us", "asia"), backs, strict=True))
        places = {"here": "eu/eu-1/rack-1", "us": "us/us-1", "asia": "asia/asia-1"}
        await mesh.apply(
            placed("shop.test", port, found, **places)
            + rule("shop.test", f"outlierDetection: {EJECT}")
            + placed("own.test", port, found, **places)
            + rule(
                "own.test",
                f"outlierDetection: {EJECT}\nloadBalancer: {{localityLbSetting: {{failover: [{{from: eu, to: us}}]}}}}",
            )
            + placed("off.test", port, found, **places)
            + rule("off.test", f"outlierDetection: {EJECT}\nloadBalancer: {{localityLbSetting: {{enabled: false}}}}")
        )
        await mesh.envoy(AT_HOME)
        one = Mesh(mesh, port)
        assert set(await one.names("shop.test", 8)) == set(await one.names("own.test", 8)) == {"here"}
        assert set(await one.names("off.test", 40)) == {"here", "us", "asia"}
        found["here"].answer = lambda request, body: (503, {})
        await one.until_only("shop.test", "asia")
        await one.until_only("own.test", "us")


async def test_endpoints_are_preferred_by_labels(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "same", "half", "other") as (mesh, (same, half, other)):
        priority = "loadBalancer: {localityLbSetting: {failoverPriority: [version, 'tier=gold']}}"
        labelled = service(
            "shop.test",
            port,
            at(other, labels={"version": "v1"}),
            at(half, labels={"version": "v2"}),
            at(same, labels={"version": "v2", "tier": "gold"}),
        )
        await mesh.apply(labelled + rule("shop.test", f"outlierDetection: {EJECT}\n{priority}"))
        await mesh.envoy(attrs.evolve(CLIENT, labels={"app": "web", "version": "v2"}))
        one = Mesh(mesh, port)
        for backend in (same, half, other):
            await one.until_only("shop.test", backend.name)
            backend.answer = lambda request, body: (503, {})


async def test_requests_are_distributed_over_localities_by_weight(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *PLACES) as (mesh, backs):
        found = dict(zip(PLACES, backs, strict=True))
        shares = '{from: "eu/eu-1/*", to: {"eu/eu-1/*": 70, "us/*": 30}}'
        await mesh.apply(
            placed("shop.test", port, found, **PLACES)
            + rule("shop.test", f"loadBalancer: {{localityLbSetting: {{distribute: [{shares}]}}}}")
        )
        await mesh.envoy(AT_HOME)
        count = Counter(await Mesh(mesh, port).names("shop.test", 200))
        assert count.keys() == {"here", "zone", "far"}, count
        assert 30 < count["far"] < 95, count


@pytest.mark.smoke
async def test_endpoints_get_their_weight(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "light", "heavy") as (mesh, (light, heavy)):
        await mesh.apply(
            service("shop.test", port, at(light, weight=1), at(heavy, weight=4))
            + rule("shop.test", "loadBalancer: {simple: ROUND_ROBIN}")
        )
        await mesh.envoy(CLIENT)
        assert Counter(await Mesh(mesh, port).names("shop.test", 50)) == {"light": 10, "heavy": 40}
