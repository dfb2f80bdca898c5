"""The Gateway API's own conformance suite, run twice on one control plane, that of samples/kubernetes.

The suite and its echo servers are built from the Go modules that go.mod names. Its requests go to routers and injected
sidecars: agents with real Envoys, each in the network namespace of a Pod. Needs root, Go, and the API server and the
controllers of tools/get_apiserver.py. The reports go to the folder in CONFORMANCE_REPORTS, if it is set.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot import __version__
from tests.conformance.gateways import CLASS, Routers
from tests.conformance.pods import BRIDGE, KUBELET_PORT, Node
from tests.support.apiserver import Object
from tests.support.binaries import require_binary
from tests.support.certificates import write_certificates
from tests.support.command import COMMAND
from tests.support.envoy import eventually
from tests.support.kubernetes_sample import NAMESPACE, SAMPLES, Cluster, cluster, objects_of
from tests.support.namespaces import require_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.envoy, pytest.mark.timeout(3600)]

MODULE = Path(__file__).parent
GATEWAY_API = "sigs.k8s.io/gateway-api"
PROGRAMS = {
    "echo-basic": f"{GATEWAY_API}/conformance/echo-basic",
    "server": "istio.io/istio/pkg/test/echo/cmd/server",
    "client": "istio.io/istio/pkg/test/echo/cmd/client",
    "kubelet": "./kubelet",
}
CONTROLLERS = (
    "deployment",
    "replicaset",
    "endpointslice",
    "serviceaccount",
    "namespace",
    "garbage-collector",
    "root-ca-certificate-publisher",
)


def go(*arguments: str) -> str:
    """What a Go command prints; nothing is used but what go.sum vouches for."""
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    env = {"HOME": str(Path.home()), **os.environ, **settings}
    done = subprocess.run([require_binary("go"), *arguments], cwd=MODULE, env=env, stdout=-1, stderr=-1)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode().strip()


def build(folder: Path) -> Path:
    """Build the suite and what its Pods run; the suite's program. A second build takes seconds."""
    folder.mkdir()
    for name, package in PROGRAMS.items():
        go("build", "-trimpath", "-o", str(folder / name), package)
    suite = folder / "suite"
    go("test", "-c", "-trimpath", "-o", str(suite), ".")
    return suite


def definitions() -> list[Object]:
    """The Gateway API's own, of its experimental channel."""
    folder = Path(go("list", "-m", "-f", "{{.Dir}}", GATEWAY_API)) / "config" / "crd" / "experimental"
    found = [each for path in sorted(folder.glob("*.k8s.io_*.yaml")) for each in objects_of(path)]
    return [each for each in found if each["kind"] == "CustomResourceDefinition"]


@asynccontextmanager
async def conforming(folder: Path, programs: Path, controllers: Path) -> AsyncIterator[Cluster]:
    """The sample with a node, controllers, and routers for Gateways."""
    async with cluster(folder, definitions()) as made:
        files = write_certificates(folder, "echo")
        images = {
            "echo-basic": [str(programs / "echo-basic")],
            "echo-advanced": [str(programs / "server")],
            "coredns": [sys.executable, str(MODULE / "no_names.py")],
            "mesh-pilot": COMMAND,
        }
        mounts = {"/cert.crt": files.certificate, "/cert.key": files.key}
        node = Node(made.server, made.network, folder / "pods", images, mounts)
        run = [
            f"--kubeconfig={made.server.kubeconfig()}",
            f"--controllers={','.join(f'{name}-controller' for name in CONTROLLERS)}",
            f"--root-ca-file={made.server.folder / 'ca.pem'}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]
        started(made, "controllers", [controllers, *run])
        # Its plane runs already, on the node itself.
        await made.server.ask(
            "PATCH", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/mesh-pilot", {"spec": {"replicas": 0}}
        )
        await made.server.apply(mesh_injection())
        gateway_class = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": CLASS},
        }
        await made.server.apply(gateway_class | {"spec": {"controllerName": "istio.io/gateway-controller"}})
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            started(made, "kubelet", [programs / "kubelet", f"{BRIDGE.ip}:{KUBELET_PORT}", folder / "pods"])
            nursery.start_soon(Routers(made.server).run)
            yield made
            nursery.cancel_scope.cancel()


def mesh_injection() -> Object:
    """The sample's injection, in the namespaces of the suite's tests of the mesh."""
    (found,) = (each for each in objects_of(SAMPLES / "webhooks.yaml") if each["kind"].startswith("Mutating"))
    (webhook,) = (each for each in found["webhooks"] if each["name"] == "namespace.sidecar-injector.istio.io")
    namespaces = {"key": "gateway-conformance", "operator": "In", "values": ["mesh", "mesh-consumer"]}
    webhook["namespaceSelector"] = {"matchExpressions": [namespaces]}
    return {**found, "metadata": {**found["metadata"], "name": "conformance"}, "webhooks": [webhook]}


def started(made: Cluster, name: str, command: list[Path | str]) -> None:
    """A process for as long as the cluster is there."""
    with (made.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    made.processes.callback(process.wait)
    made.processes.callback(process.terminate)


async def run_suite(made: Cluster, suite: Path, report: Path) -> Sequence[str]:
    """The tests of the suite that failed, the outer ones last."""
    log = report.with_suffix(".log")
    command = [str(suite), "-test.v", "-test.timeout=30m", f"-conformance-options-file={MODULE}/options.yaml"]
    command += [f"-report-output={report}", f"-version={__version__}"]
    env = {**os.environ, "KUBECONFIG": str(made.server.kubeconfig())}
    with log.open("wb") as output:
        done = await trio.run_process(command, stdout=output, stderr=output, env=env, check=False)
    failed = re.findall(r"^ *--- FAIL: (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    assert failed or done.returncode == 0, log.read_text(errors="replace")[-3000:]
    return failed


async def namespaces_are_gone(made: Cluster) -> bool:
    """True once nothing of the suite is left."""
    found = await made.server.ask("GET", "/api/v1/namespaces")
    return not any(each["metadata"]["name"].startswith("gateway-conformance") for each in found["items"])


@pytest.mark.flaky(reruns=0)
async def test_the_suite_passes_whole_and_once_more_on_the_same_plane(tmp_path: Path) -> None:
    require_namespaces()
    controllers = require_binary("kube-controller-manager", "CONTROLLER_MANAGER")
    programs = tmp_path / "programs"
    suite = build(programs)
    async with conforming(tmp_path, programs, controllers) as made:
        for turn in (1, 2):
            report = tmp_path / f"report-{turn}.yaml"
            assert await run_suite(made, suite, report) == []
            await eventually(partial(namespaces_are_gone, made), what="the suite's namespaces are gone")
    if folder := os.environ.get("CONFORMANCE_REPORTS"):
        shutil.copyfile(report, Path(folder) / "report.yaml")
