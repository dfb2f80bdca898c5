"""grpcurl at a control plane: every service of both gRPC ports is described, with all messages."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import grpc
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.rpc.rpc_support import in_thread
from tests.support.plane_process import PlaneProcess
from tests.support.planes import SERVICE, running_plane
from tests.support.ports import free_ports
from tests.support.reflected import all_methods, reflection

SERVED = {
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
    "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/DeltaExtensionConfigs",
    "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream",
    "/istio.mcp.v1alpha1.AggregatedMeshConfigService/StreamAggregatedResources",
    "/istio.v1.auth.IstioCertificateService/CreateCertificate",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
}

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: it is not a dependency", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.plane
async def test_both_ports_describe_every_method_that_they_serve(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)

    def learn(address: str, root: bytes | None, version: str) -> dict[str, tuple[str, str]]:
        credentials = grpc.ssl_channel_credentials(root) if root is not None else None
        with reflection(f"localhost:{address.rpartition(':')[2]}", credentials, version=version) as client:
            return all_methods(client)

    async with running_plane(config, ca_dir=tmp_path / "ca") as plane:
        await plane.wait_ready()
        root = (tmp_path / "ca" / "root-cert.pem").read_bytes()
        ports = ((plane.addresses.grpc, None), (plane.addresses.secure_grpc, root))
        for server, (address, trusted) in zip(plane.state.rpc_servers, ports, strict=True):
            assert address is not None
            served = set(server.calls())
            assert served >= SERVED
            for version in ("v1", "v1alpha"):
                assert served - (await in_thread(learn, address, trusted, version)).keys() == set()


def absent_modules() -> set[str]:
    """The top-level modules that only the extras bring."""
    needed, todo = set[str](), ["mesh-pilot"]
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in needed:
            needed.add(name)
            for line in requires(name) or []:
                wanted = Requirement(line)
                if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                    todo.append(wanted.name)
    return {
        module
        for module, owners in packages_distributions().items()
        if re.fullmatch(r"\w+", module) and not needed & {canonicalize_name(owner) for owner in owners}
    } - set(sys.stdlib_module_names)


@pytest.mark.process
async def test_an_installation_without_extras_describes_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # grpcio is there for the sake of xds-protos' stubs, which nothing of ours needs.
    absent = {*absent_modules(), "grpc"}
    assert {"grpc_tools", "pytest"} <= absent
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(WITHOUT.format(names=absent))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.yaml").write_text(SERVICE)
    log = tmp_path / "plane.log"
    log.touch()
    plane = PlaneProcess(log, free_ports(3), "--config-dir", str(tmp_path / "config"), "--no-state")
    await plane.start()
    try:

        def learn() -> dict[str, tuple[str, str]]:
            with reflection(plane.grpc) as client:
                symbols = ("istio.networking.v1alpha3.VirtualService", "envoy.config.cluster.v3.Cluster")
                for symbol in symbols:  # what the bodies of answers are
                    client.file(file_containing_symbol=symbol)
                return all_methods(client)

        assert (await in_thread(learn)).keys() >= SERVED
    finally:
        await plane.kill()
