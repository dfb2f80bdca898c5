"""The names in the server's certificate: all by which a sample, a webhook, MeshConfig and people call it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from mesh_pilot.app.identity import server_names, webhook_names
from mesh_pilot.app.settings import Settings
from mesh_pilot.identity.certificates.server_certificate import default_names
from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
from mesh_pilot.net.rpc.net import machine_addresses
from mesh_pilot.world import World
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def objects_of_sample() -> list[dict[str, Any]]:
    files = (SAMPLES / "kubernetes" / name for name in ("mesh-pilot.yaml", "webhooks.yaml"))
    return [found for path in files for found in yaml.safe_load_all(path.read_text()) if found]


def test_addresses_of_the_sample_for_kubernetes_are_names_of_both_certificates() -> None:
    objects = objects_of_sample()
    (mesh,) = (each["data"]["mesh"] for each in objects if each["kind"] == "ConfigMap")
    told = yaml.safe_load(mesh)["defaultConfig"]["discoveryAddress"].rpartition(":")[0]
    asked = {
        "{name}.{namespace}.svc".format(**webhook["clientConfig"]["service"])
        for each in objects
        if each["kind"].endswith("WebhookConfiguration")
        for webhook in each["webhooks"]
    }
    (service,) = (each["metadata"] for each in objects if each["kind"] == "Service")
    settings = Settings(webhooks=WebhookSettings(address=":15017"))
    # The World is one before any MeshConfig has been read.
    xds, webhooks = server_names(settings, World(), ["[::]:15012"]), webhook_names(settings)
    for name in {told, *asked, "{name}.{namespace}.svc".format(**service)}:
        assert name in xds
        assert name in webhooks


def test_a_plane_that_listens_on_any_address_is_known_by_all_of_its_machine() -> None:
    """As samples/systemd does (0.0.0.0), and a container (no host)."""
    own = set(machine_addresses())
    for address in ("0.0.0.0:15012", "[::]:15012", ":15012"):
        assert own <= set(default_names("istio-system", [address]))
    named = default_names("istio-system", ["10.77.0.1:15012"])
    assert "10.77.0.1" in named
    assert not own & set(named) - {"10.77.0.1"}


def test_a_revision_has_the_names_of_its_own_service() -> None:
    settings = Settings(namespace="mesh", webhooks=WebhookSettings(address=":15017", revision="canary"))
    for names in (server_names(settings, World(), [":15012"]), webhook_names(settings)):
        assert {"istiod-canary.mesh.svc", "istiod.mesh.svc", "mesh-pilot.mesh.svc"} <= set(names)


def test_names_that_are_set_replace_all_others() -> None:
    settings = Settings(tls_dns_names=("pilot.internal",))
    assert server_names(settings, World(), [":15012"]) == ("pilot.internal",)


async def is_known(address: str, root: Path, name: str) -> bool:
    """True if the certificate shown there is one for this name."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    async with trio.SSLStream(await trio.open_tcp_stream(host, int(port)), context, server_hostname=name) as stream:
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
            return False
        return True


@pytest.mark.plane
async def test_the_host_of_discovery_address_is_a_name_as_soon_as_the_mesh_config_says_so(tmp_path: Path) -> None:
    config, mesh, ca = tmp_path / "config", tmp_path / "mesh.yaml", tmp_path / "ca"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    mesh.write_text("defaultConfig: {discoveryAddress: 'pilot.shop.example:15012'}\n")
    with trio.fail_after(30):
        async with running_plane(config, ca_dir=ca, mesh_config=mesh) as plane:
            address, root = plane.addresses.secure_grpc, ca / "root-cert.pem"
            await eventually(lambda: is_known(address, root, "pilot.shop.example"), what="the first name is known")
            assert not await is_known(address, root, "other.shop.example")
            mesh.write_text("defaultConfig: {discoveryAddress: 'other.shop.example:15012'}\n")
            await eventually(lambda: is_known(address, root, "other.shop.example"), what="the second name is known")
            assert await is_known(address, root, "mesh-pilot.istio-system.svc")
