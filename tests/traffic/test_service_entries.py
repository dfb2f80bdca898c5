"""ServiceEntries and WorkloadEntries: what they declare is reached by the names, ports and ways that they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.support.echo import Backend, greeting
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, routes, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
REGISTRY_ONLY = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"


def on(backend: Backend, port: int) -> dict[str, object]:
    """The ports of a service that leads to a backend by ``targetPort``."""
    return {"ports": [{"number": port, "name": "main", "protocol": "HTTP", "targetPort": backend.port}]}


@pytest.mark.smoke
async def test_endpoints_are_found_by_every_kind_of_resolution(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh=REGISTRY_ONLY) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two", host="127.0.1.1")
        unix = await mesh.backend("unix", unix=tmp_path / "app.sock")
        by_name = at(one) | {"address": "localhost"}
        config = {
            "static.test": service("static.test", port, at(one)),
            "target.test": service("target.test", port, {"address": two.host}, **on(two, port)),
            "unix.test": service("unix.test", port, {"address": unix.host}),
            "dns.test": service("dns.test", port, by_name, resolution="DNS"),
            "dns.localhost": service("dns.localhost", port, resolution="DNS", **on(one, port)),
            "both.test": service("both.test", port, by_name, at(two), resolution="DNS"),
            "round.test": service("round.test", port, by_name, resolution="DNS_ROUND_ROBIN"),
            "round.localhost": service("round.localhost", port, resolution="DNS_ROUND_ROBIN", **on(one, port)),
            "a.wild.test": service("*.wild.test", port, at(two)),
            "b.c.wild.test": "",
            "a.dns.wild.test": service("*.dns.wild.test", port, by_name, resolution="DNS"),
            "second.test": service(["first.test", "second.test"], port, at(two)),
            "first.test": "",
            "external.test": service("external.test", port, at(two), location="MESH_EXTERNAL"),
            "10.9.8.7": service("address.test", port, at(two), addresses=["10.9.8.7"]),
        }
        await mesh.apply("".join(config.values()))
        await mesh.envoy(CLIENT, delta=True)
        answers = {}
        for host in (*config, "wild.test", "unknown.test"):
            answers[host] = set(await mesh.names(f"http://127.0.0.1:{port}/", host=host, count=12))
        assert answers == {
            "static.test": {"one"},
            "target.test": {"two"},
            "unix.test": {"unix"},
            "dns.test": {"one"},
            "dns.localhost": {"one"},
            "both.test": {"one", "two"},
            "round.test": {"one"},
            "round.localhost": {"one"},
            "a.wild.test": {"two"},
            "b.c.wild.test": {"two"},
            "a.dns.wild.test": {"one"},
            "second.test": {"two"},
            "first.test": {"two"},
            "external.test": {"two"},
            "10.9.8.7": {"two"},
            "wild.test": {"502"},
            "unknown.test": {"502"},
        }
        await mesh.assert_all_taken()


async def test_services_in_the_cluster_domain_have_short_names(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh=REGISTRY_ONLY) as mesh:
        near, far = await mesh.backend("near"), await mesh.backend("far")
        await mesh.apply(
            service("cart.shop.svc.cluster.local", port, at(near), name="cart")
            + service("cart.bank.svc.cluster.local", port, at(far), name="cart", namespace="bank")
            + routes("cart", "- {headers: {response: {set: {x-by: short}}}, route: [{destination: {host: cart}}]}")
        )
        await mesh.envoy(CLIENT)
        url = f"http://127.0.0.1:{port}/"
        for host in ("cart", "cart.shop", "cart.shop.svc", "cart.shop.svc.cluster.local"):
            for authority in (host, f"{host}:{port}"):
                reply = await mesh.get(url, host=authority)
                assert (reply.json()["name"], reply.headers["x-by"]) == ("near", "short"), authority
        for host in ("cart.bank", "cart.bank.svc", "cart.bank.svc.cluster.local"):
            reply = await mesh.get(url, host=host)
            assert (reply.json()["name"], reply.headers.get("x-by")) == ("far", None), host
        await mesh.assert_all_taken()


async def test_each_port_has_its_protocol_and_its_place_at_the_endpoint(tmp_path: Path, free_ports: Ports) -> None:
    web_port, admin_port, raw_port = free_ports(3)
    async with fleet(tmp_path) as mesh:
        web, admin, raw = await mesh.backend("web"), await mesh.backend("admin"), await mesh.tcp_backend("raw")
        ports = [
            {"number": web_port, "name": "http", "protocol": "HTTP"},
            {"number": admin_port, "name": "admin", "protocol": "HTTP", "targetPort": admin.port},
            {"number": raw_port, "name": "raw", "protocol": "TCP", "targetPort": 1},
        ]
        endpoint = {"address": "127.0.0.1", "ports": {"http": web.port, "raw": raw.port}}
        await mesh.apply(service("many.test", 1, endpoint, ports=ports))
        await mesh.envoy(CLIENT)
        for port, name in ((web_port, "web"), (admin_port, "admin")):
            for host in ("many.test", f"many.test:{port}"):
                assert set(await mesh.names(f"http://127.0.0.1:{port}/", host=host, count=2)) == {name}
        assert await greeting("127.0.0.1", raw_port) == "raw"
        await mesh.assert_all_taken()


async def test_workloads_join_and_leave_the_services_that_select_them(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)

    def workload(name: str, backend: Backend, app: str = "cart", namespace: str = "shop") -> str:
        spec = {"address": backend.host, "ports": {"main": backend.port}, "labels": {"app": app}}
        return manifest("WorkloadEntry", name, spec, namespace=namespace)

    async with fleet(tmp_path) as mesh:
        one, two, three = [await mesh.backend(name) for name in ("one", "two", "three")]
        selecting = service("cart.test", port, workloadSelector={"labels": {"app": "cart"}})
        by_dns = service("dns.test", port, workloadSelector={"labels": {"app": "dns"}}, resolution="DNS")
        named = attrs.evolve(three, host="localhost")
        strangers = workload("other", three, app="other") + workload("elsewhere", three, namespace="bank")
        await mesh.apply(selecting + by_dns + strangers + workload("one", one) + workload("named", named, app="dns"))
        await mesh.envoy(CLIENT, delta=True)
        url = f"http://127.0.0.1:{port}/"
        assert set(await mesh.names(url, host="cart.test")) == {"one"}
        assert set(await mesh.names(url, host="dns.test")) == {"three"}
        async with mesh.load(url, host="cart.test") as load:
            await mesh.apply(workload("two", two), "two.yaml")
            await mesh.until_answered_by({"one", "two"}, url, host="cart.test")
            await mesh.apply(selecting + by_dns)
            await mesh.until_answered_by({"two"}, url, host="cart.test")
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_services_are_seen_where_they_are_exported(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"

    def exported(export: str) -> str:
        return service("bank.test", port, at(backend), namespace="bank", exportTo=[export])

    async with fleet(tmp_path, mesh=REGISTRY_ONLY) as mesh:
        backend = await mesh.backend("bank")
        always = service("any.test", port, at(backend), name="any")
        await mesh.apply(always + exported("."))
        envoy = await mesh.envoy(CLIENT)

        async def answered(name: str) -> None:
            async def does() -> bool:
                return set(await mesh.names(url, host="bank.test", count=2)) == {name}

            await eventually(does, what=f"bank.test is answered by {name}")

        await answered("502")
        assert not any("bank.test" in name for name in await envoy.dynamic("Cluster"))
        for export, name in (("shop", "bank"), ("~", "502"), ("*", "bank"), ("other", "502")):
            await mesh.apply(always + exported(export))
            await answered(name)
        await mesh.assert_all_taken()


async def test_a_host_declared_twice_has_the_endpoints_of_both(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two")
        first, second = (service("twice.test", port, at(b), name=b.name) for b in (one, two))
        await mesh.apply(first + second)
        await mesh.envoy(CLIENT)
        assert set(await mesh.names(url, host="twice.test")) == {"one", "two"}
        async with mesh.load(url, host="twice.test") as load:
            await mesh.apply(second)
            await mesh.until_answered_by({"two"}, url, host="twice.test")
        assert load.failures == []
        await mesh.assert_all_taken()
