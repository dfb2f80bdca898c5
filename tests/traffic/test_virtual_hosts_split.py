"""Virtual hosts as resources of their own (VHDS over ADS), with a real Envoy: all works as with whole tables, and a
change sends what changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, VIRTUAL_HOST
from tests.support.edge import gateway, to
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, service, subsets, version
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
REGISTRY_ONLY = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"


def split(node: EnvoyNode) -> EnvoyNode:
    return attrs.evolve(node, metadata={**node.metadata, "VIRTUAL_HOSTS": "split"})


def pushes(mesh: Fleet) -> dict[str, int]:
    """Responses sent so far, by type."""
    return dict(mesh.plane.state.xds.status.statistics().pushes)


def sent_bytes(mesh: Fleet, type_url: str) -> int:
    return mesh.plane.state.xds.status.statistics().bytes_sent.get(type_url, 0)


async def reloads(envoy: RealEnvoy, table: str) -> int:
    """How often Envoy took new virtual hosts for a table."""
    return await envoy.counted(rf"rds\.vhds\.{table}\.config_reload$")


def answer(status: int) -> str:
    return f"- directResponse: {{status: {status}}}"


@pytest.mark.parametrize("node", [CLIENT, split(CLIENT)], ids=["whole", "split"])
async def test_a_direct_response_may_become_longer_than_envoys_default(
    node: EnvoyNode, tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(service("app.test", port, at(app)) + service("other.test", port, at(app)))
        await mesh.envoy(node, delta=True)
        for size in (10, 5_000, 100_000, 20):
            body = f"body: {{string: {'x' * size}}}"
            await mesh.apply(routes("app.test", f"- directResponse: {{status: 203, {body}}}"), "app.yaml")

            async def answered(size: int = size) -> bool:
                found = await mesh.get(f"http://127.0.0.1:{port}/", host="app.test")
                return (found.status_code, len(found.text)) == (203, size)

            await eventually(answered, what=f"a body of {size} bytes")


async def test_an_edit_changes_one_virtual_host_and_nothing_else(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    hosts = [f"s{n}.test" for n in range(40)]
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply("".join(service(host, port, at(app)) for host in hosts))
        for host in hosts:
            mesh.write(routes(host, answer(203)), f"{host}.yaml")
        envoy = await mesh.envoy(split(CLIENT), delta=True)

        async def status(host: str) -> int:
            return (await mesh.get(f"http://127.0.0.1:{port}/", host=host)).status_code

        async def all_routed() -> bool:
            return {await status(host) for host in hosts} == {203}

        await eventually(all_routed, what="all hosts are routed")
        (table,) = (await envoy.dynamic("RouteConfiguration")).values()
        assert {host["name"] for host in table["virtual_hosts"]} >= {f"{port}/{host}:{port}" for host in hosts}
        before, taken, size = pushes(mesh), await reloads(envoy, str(port)), sent_bytes(mesh, VIRTUAL_HOST)
        await mesh.apply(routes("s7.test", answer(218)), "s7.test.yaml")

        async def changed() -> bool:
            return await status("s7.test") == 218

        await eventually(changed, what="the edit is seen")
        assert {await status(host) for host in hosts if host != "s7.test"} == {203}
        after = pushes(mesh)
        assert {t: after[t] - before[t] for t in after if after[t] != before[t]} == {VIRTUAL_HOST: 1}
        assert await reloads(envoy, str(port)) == taken + 1
        assert sent_bytes(mesh, VIRTUAL_HOST) - size < 1000
        debug = f"http://{mesh.plane.addresses.http}/debug"
        (status,) = (await mesh.client.get(f"{debug}/syncz")).json()
        assert status["status"]["VHDS"] == "SYNCED"
        dump = (await mesh.client.get(f"{debug}/config_dump", params={"proxyID": status["proxy_id"]})).json()["configs"]
        (section,) = (part for part in dump if part["@type"].endswith(".VirtualHostsConfigDump"))
        entry = next(e for e in section["dynamic_virtual_hosts"] if "s7.test" in e["virtual_host"]["name"])
        assert "VirtualService/shop/s7-test" in entry["made_from"]
        assert entry["virtual_host"]["routes"][0]["direct_response"]["status"] == 218
        await mesh.assert_all_taken()


async def test_services_come_and_go_with_all_their_names(tmp_path: Path, free_ports: Ports) -> None:
    """On a port that there is, and on ports that are new or gone; names of several hosts and of wildcards."""
    port, other = free_ports(2)
    async with fleet(tmp_path, mesh=REGISTRY_ONLY) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two")
        first = service("one.test", port, at(one))
        await mesh.apply(first)
        await mesh.envoy(split(CLIENT), delta=True)

        async def answered(at_port: int, **wanted: str) -> None:
            async def are() -> bool:
                url = f"http://127.0.0.1:{at_port}/"
                found = {}
                for key in wanted:
                    found[key] = set(await mesh.names(url, host=key.replace("_", "."), count=1))
                return found == {key: {name} for key, name in wanted.items()}

            await eventually(are, what=f"{wanted} on {at_port}")

        await answered(port, one_test="one", two_test="502")
        second = service(["two.test", "also.test", "*.many.test"], port, at(two), resolution="STATIC")
        await mesh.apply(first + second)
        await answered(port, one_test="one", two_test="two", also_test="two", any_many_test="two", many_test="502")
        third = service("two.test", other, at(two), name="third")
        await mesh.apply(first + third)
        await answered(port, one_test="one", two_test="502", also_test="502")
        await answered(other, two_test="two", one_test="502")
        await mesh.apply(first)
        await answered(port, one_test="one", two_test="502")
        await mesh.assert_all_taken()


async def test_what_becomes_of_hosts_that_nobody_declared_is_as_the_policy_says(
    tmp_path: Path, free_ports: Ports
) -> None:
    """Passed on to where the client was going, or to a proxy, or refused."""
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app, proxy = await mesh.backend("app"), await mesh.backend("proxy")
        services = service("app.test", port, at(app)) + service("proxy.test", port, at(proxy))
        await mesh.apply(services)
        envoy = await mesh.envoy(split(CLIENT), delta=True)
        passed = "cluster.PassthroughCluster.upstream_cx_none_healthy$"

        async def unknown() -> str:
            reply = await mesh.get(f"http://127.0.0.1:{port}/", host="unknown.test")
            return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)

        # Without interception there is no other destination than Envoy itself: it knows none.
        assert (await unknown(), await envoy.counted(passed)) == ("503", 1)
        for policy, wanted in (
            ("{mode: REGISTRY_ONLY}", "502"),
            (f"{{mode: ALLOW_ANY, egressProxy: {{host: proxy.test, port: {{number: {port}}}}}}}", "proxy"),
            ("{mode: ALLOW_ANY}", "503"),
        ):
            sidecar = f"egress: [{{hosts: ['*/*']}}]\noutboundTrafficPolicy: {policy}"
            await mesh.apply(services + manifest("Sidecar", "default", sidecar))

            async def as_told(wanted: str = wanted) -> bool:
                return await unknown() == wanted

            await eventually(as_told, what=f"unknown hosts are answered {wanted}")
            assert (await mesh.get(f"http://127.0.0.1:{port}/", host="app.test")).json()["name"] == "app"
            tables = await envoy.dynamic("RouteConfiguration")
            assert len(tables[str(port)]["virtual_hosts"]) == 3, "what was for other hosts before is gone"
        await mesh.assert_all_taken()


async def test_an_envoy_that_comes_back_is_sent_what_changed_meanwhile_and_nothing_else(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, grpc = free_ports(2)
    address = f"127.0.0.1:{grpc}"
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    async with fleet(tmp_path) as backends:
        app = await backends.backend("app")
        services = service("app.test", port, at(app)) + service("other.test", port, at(app))
        async with fleet(old, services + routes("app.test", answer(203)), grpc_addr=address) as first:
            backends.plane_address = address
            envoy = await backends.envoy(split(CLIENT), delta=True)
            sent = pushes(first)
            assert sent[VIRTUAL_HOST] == sent[ROUTE] == 1
            # A stream that breaks, the same server.
        await eventually(lambda: _not(envoy.connected()), what="the control plane is gone")
        assert (await backends.get(f"http://127.0.0.1:{port}/", host="app.test")).status_code == 203
        async with fleet(new, services + routes("app.test", answer(203)), grpc_addr=address) as second:
            await eventually(envoy.connected, what="Envoy is back")
            await eventually(lambda: len(_asked(second)) >= 4, what="it asks for what it has")
            assert {t for t in pushes(second) if t in (CLUSTER, LISTENER, ROUTE, VIRTUAL_HOST)} == set()
            assert (await backends.get(f"http://127.0.0.1:{port}/", host="app.test")).status_code == 203
            await second.apply(services + routes("app.test", answer(218)))

            async def changed() -> bool:
                return (await backends.get(f"http://127.0.0.1:{port}/", host="app.test")).status_code == 218

            await eventually(changed, what="the edit is seen")
            assert pushes(second).keys() & {CLUSTER, LISTENER, ROUTE, VIRTUAL_HOST} == {VIRTUAL_HOST}
        await eventually(lambda: _not(envoy.connected()), what="the control plane is gone again")
        third_folder = tmp_path / "third"
        third_folder.mkdir()
        without = service("app.test", port, at(app)) + routes("app.test", answer(218))
        async with fleet(third_folder, without, grpc_addr=address) as third:

            async def gone() -> bool:
                tables = await envoy.dynamic("RouteConfiguration")
                return len(tables[str(port)]["virtual_hosts"]) == 2

            await eventually(gone, what="the service that went meanwhile is gone")
            assert (await backends.get(f"http://127.0.0.1:{port}/", host="app.test")).status_code == 218
            assert pushes(third)[VIRTUAL_HOST] == 1
        await backends.assert_all_taken()


def _asked(mesh: Fleet) -> list[str]:
    """The types that the one connected proxy asks for."""
    (connection,) = mesh.plane.state.xds.status.connections() or (None,)
    return [t.type_url for t in connection.types] if connection is not None else []


async def _not(answer: object) -> bool:
    return not await answer  # type: ignore[misc]


@pytest.mark.smoke
async def test_routes_change_while_requests_are_answered_without_a_failure(tmp_path: Path, free_ports: Ports) -> None:
    """The service moves between clusters that come and go with their virtual host."""
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        base = service("app.test", port, version("v1", v1), version("v2", v2))
        await mesh.apply(base)
        await mesh.envoy(split(CLIENT), delta=True)
        url = f"http://127.0.0.1:{port}/"
        async with mesh.load(url, host="app.test") as load:
            for name in ("v1", "v2", "v1"):
                to_one = f"- route: [{{destination: {{host: app.test, subset: {name}}}}}]"
                await mesh.apply(base + subsets("app.test", name) + routes("app.test", to_one))
                await mesh.until_answered_by({name}, url, host="app.test")
            await mesh.apply(base)
            await mesh.until_answered_by({"v1", "v2"}, url, host="app.test")
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_a_gateway_gets_its_hosts_one_by_one(tmp_path: Path, free_ports: Ports) -> None:
    port, service_port = free_ports(2)
    servers = f'- {{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ["*"]}}'
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        base = gateway("edge", servers) + service("app.test", service_port, at(app))
        hosts = [f"h{n}.test" for n in range(5)]
        await mesh.apply(base + "".join(to(host, "app.test", "edge") for host in hosts))
        envoy = await mesh.envoy(split(EDGE), delta=True)

        async def status(host: str) -> int:
            return (await mesh.get(f"http://127.0.0.1:{port}/", host=host)).status_code

        assert {await status(host) for host in hosts} == {200}
        assert await status("other.test") == 404
        before = pushes(mesh)
        edited = routes("h3.test", answer(218), gateways=("edge",))
        await mesh.apply(base + "".join(to(host, "app.test", "edge") for host in hosts if host != "h3.test") + edited)

        async def changed() -> bool:
            return await status("h3.test") == 218

        await eventually(changed, what="the edit is seen")
        assert {await status(host) for host in hosts if host != "h3.test"} == {200}
        after = pushes(mesh)
        assert {t for t in after if after[t] != before[t]} == {VIRTUAL_HOST}
        await mesh.apply(base)

        async def empty() -> bool:
            return {await status(host) for host in hosts} == {404}

        await eventually(empty, what="no host is left")
        assert await envoy.rejected() == {}


@pytest.mark.parametrize("delta", [True, False], ids=["asks-not", "sotw"])
async def test_who_does_not_ask_for_it_or_cannot_gets_whole_tables(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(service("app.test", port, at(app)))
        await mesh.envoy(CLIENT if delta else split(CLIENT), delta=delta)
        assert (await mesh.get(f"http://127.0.0.1:{port}/", host="app.test")).json()["name"] == "app"
        assert VIRTUAL_HOST not in pushes(mesh)
        await mesh.assert_all_taken()
