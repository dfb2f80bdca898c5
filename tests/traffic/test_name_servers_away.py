"""Envoys that start while name servers do not answer: what needs no DNS is served at once, the rest when it can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dns.message
import pytest
import trio
from google.protobuf.json_format import MessageToDict

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.name_servers import ScriptedNameServer, answer, no_answer
from tests.support.upstreams import outbound
from tests.support.worlds import sidecar

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

SIDECAR = EnvoyNode("web", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
ROUTER = EnvoyNode("edge", "shop", "127.0.0.2", NodeType.ROUTER, labels={"istio": "edge"})


async def asking(mesh: Fleet, server: ScriptedNameServer, *hosts: str) -> None:
    """Send the queries for these services to a test's name server; all else stays as the control plane has it."""
    address, _, port = server.address.rpartition(":")
    view = mesh.plane.state.world
    sent = {
        cluster.name.split("|")[3]: cluster for cluster in outbound(view, sidecar()).values() if "||" in cluster.name
    }
    patches = []
    for host in hosts:
        resolver = MessageToDict(sent[host].typed_dns_resolver_config, preserving_proto_field_name=True)
        resolver["typed_config"]["resolvers"] = [{"socket_address": {"address": address, "port_value": int(port)}}]
        patch = {"operation": "MERGE", "value": {"typed_dns_resolver_config": resolver}}
        patches.append({"applyTo": "CLUSTER", "match": {"cluster": {"service": host}}, "patch": patch})
    await mesh.apply(manifest("EnvoyFilter", "resolver", {"configPatches": patches}), "resolver.yaml")


async def seconds_until_live(mesh: Fleet, node: EnvoyNode) -> float:
    began = trio.current_time()
    await mesh.envoy(node)
    return trio.current_time() - began


@pytest.mark.parametrize(
    ("node", "resolution", "count"),
    [(SIDECAR, "DNS", 5), (ROUTER, "DNS", 1), (SIDECAR, "DNS_ROUND_ROBIN", 1)],
    ids=["sidecar", "router", "round-robin"],
)
async def test_services_by_address_do_not_wait_for_name_servers(
    tmp_path: Path, free_ports: Ports, node: EnvoyNode, resolution: str, count: int
) -> None:
    (port,) = free_ports(1)
    server = ScriptedNameServer(no_answer)
    async with trio.open_nursery() as nursery, fleet(tmp_path) as mesh:
        await nursery.start(server.serve)
        app = await mesh.backend("app")
        hosts = [f"e{number}.example.com" for number in range(count)]
        config = service("app.test", port, at(app))
        config += "".join(service(host, port, resolution=resolution, location="MESH_EXTERNAL") for host in hosts)
        config += gateway("edge", f'- {{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ["*"]}}')
        config += "".join(to(host, host, "edge") for host in ("app.test", *hosts))
        await mesh.apply(config)
        await asking(mesh, server, *hosts)
        assert await seconds_until_live(mesh, node) < 10
        url = f"http://127.0.0.1:{port}/"
        assert set(await mesh.names(url, host="app.test", count=2)) == {"app"}
        assert set(await mesh.names(url, host=hosts[0], count=1)) == {"503"}
        assert {name for name in server.names if name in hosts} == set(hosts)

        server.script = lambda query: answer(query, "60 A 127.0.0.1")
        await eventually(lambda: len(server.asked) > 2 * count, what="names are asked for again soon")
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()


async def test_the_first_request_finds_a_host_whose_answer_takes_long(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    server = ScriptedNameServer(no_answer)

    def second_query(query: dns.message.Message) -> dns.message.Message | None:
        return answer(query, "60 A 127.0.0.1") if len(server.asked) > 1 else None

    server.script = second_query
    async with trio.open_nursery() as nursery, fleet(tmp_path) as mesh:
        await nursery.start(server.serve)
        app = await mesh.backend("app")
        endpoint = {"address": "app.example.com", "ports": {"main": app.port}}
        await mesh.apply(service("app.example.com", port, endpoint, resolution="DNS"))
        await asking(mesh, server, "app.example.com")
        await mesh.envoy(SIDECAR)
        assert set(await mesh.names(f"http://127.0.0.1:{port}/", host="app.example.com", count=1)) == {"app"}
        assert len(server.asked) == 2
        nursery.cancel_scope.cancel()
