"""Real Envoys on the agent's relay: through it to a control plane, and from disk without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.proxy import SELF_DISCOVERY
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from tests.support.echo import http_backend
from tests.support.edge import gateway, secure, to
from tests.support.envoy import RealEnvoy, eventually, http_client, real_envoy
from tests.support.manifests import at, service
from tests.support.planes import SERVICE, running_plane
from tests.support.relayed import Relayed, relayed
from tests.support.shop import EDGE

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

NODE = EnvoyNode("web-1", labels={"app": "web"})
ABOUT_ITSELF = attrs.evolve(NODE, metadata={SELF_DISCOVERY: "true"})
VARIANTS = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def is_kept(relay: Relayed, plane: ControlPlane) -> bool:
    """True if Envoy has accepted whatever the control plane has sent, and nothing of it waits for the disk."""
    pushes = plane.state.xds.status.statistics().pushes
    of_envoy = [pushes.get(type_url, 0) for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE)]
    is_accepted = all(of_envoy) and relay.relay.statistics().accepted == sum(of_envoy)
    return is_accepted and not relay.relay._writer._waiting


@pytest.mark.smoke
@VARIANTS
@pytest.mark.parametrize("node", [NODE, ABOUT_ITSELF], ids=["", "with a local cluster"])
async def test_envoy_starts_from_disk_while_no_control_plane_is_there(
    tmp_path: Path, node: EnvoyNode, delta: bool
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    async with running_plane(config) as plane:
        address = plane.addresses.grpc
        async with (
            relayed(tmp_path, address) as relay,
            real_envoy(relay.address, tmp_path, node, delta=delta, name="first") as envoy,
        ):
            await envoy.wait_live()
            await eventually(partial(is_kept, relay, plane), what="Envoy has accepted all types, and all is on disk")
            first = {kind: set(await envoy.dynamic(kind)) for kind in KINDS}
            assert any("reviews.test" in name for name in first["Cluster"])
            assert await envoy.rejected() == {}
    async with (
        relayed(tmp_path, address) as relay,
        real_envoy(relay.address, tmp_path, node, delta=delta, name="second") as envoy,
    ):
        with trio.fail_after(30):
            await envoy.wait_live()
        await eventually(envoy.takes_traffic, what="its workers run")
        second = {kind: set(await envoy.dynamic(kind)) for kind in KINDS}
        assert second == first
        assert await envoy.rejected() == {}
        assert relay.relay.statistics().offline == 1
        async with running_plane(config, grpc_addr=address) as plane:
            status = plane.state.xds.status
            await eventually(
                lambda: any(len(stream.types) >= 4 for stream in status.connections()), what="Envoy says what it has"
            )
            # by their versions the control plane knows that nothing has changed
            same = {CLUSTER, LISTENER, ENDPOINT, ROUTE} if delta else {CLUSTER, LISTENER}
            assert not same & status.statistics().pushes.keys()
            assert {kind: set(await envoy.dynamic(kind)) for kind in KINDS} == first


KINDS = ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration")


@VARIANTS
async def test_a_gateway_starts_from_disk_without_the_certificates_that_are_not_kept(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    plain, encrypted = free_ports(2)
    servers = f"""\
    - port: {{number: {plain}, name: http, protocol: HTTP}}
      hosts: [app.test]
    - port: {{number: {encrypted}, name: https, protocol: HTTPS}}
      hosts: [app.test]
      tls: {{mode: SIMPLE, credentialName: cert}}
"""
    async with http_backend("app") as app:
        async with secure(tmp_path) as at_edge:
            at_edge.credential("cert", "app.test")
            address = at_edge.mesh.plane.addresses.grpc
            config = gateway("edge", servers) + service("app.test", 80, at(app)) + to("app.test", "app.test", "edge")
            await at_edge.mesh.apply(config)
            async with (
                relayed(tmp_path, address, node=EDGE) as relay,
                real_envoy(relay.address, tmp_path, EDGE, delta=delta, name="first") as envoy,
            ):
                await envoy.wait_live()
                await eventually(partial(answers, plain), what="the plain port serves")
                await eventually(lambda: has_secret(envoy), what="the certificate has come")
                await eventually(lambda: not relay.relay._writer._waiting, what="all is written")
        async with (
            relayed(tmp_path, address, node=EDGE) as relay,
            real_envoy(relay.address, tmp_path, EDGE, delta=delta, name="second") as envoy,
        ):
            with trio.fail_after(30):
                await envoy.wait_live()
            await eventually(partial(answers, plain), what="the plain port serves again")
            assert relay.relay.statistics().offline == 1
    assert b"PRIVATE KEY" not in kept_bytes(tmp_path)


def kept_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("answers.db*"))


async def has_secret(envoy: RealEnvoy) -> bool:
    return any(name.startswith("kubernetes://") for name in await envoy.dynamic("Secret"))


async def answers(port: int) -> bool:
    async with http_client() as client:
        try:
            reply = await client.get(f"http://127.0.0.1:{port}/", headers={"host": "app.test"})
        except httpx.HTTPError:
            return False
        return reply.status_code == 200
