"""samples/kubernetes as it stands: its containers' arguments at its ports, in containers with what it mounts there.

A real API server takes the files and asks the webhooks by their Service, which has the address that it was given there;
redirecting its port is what kube-proxy does. A Pod that is made is injected, and the agent in it, started with exactly
what the webhook has put into the Pod, reaches the control plane by the name that the sample gives it.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import yaml

from mesh_pilot.config.kinds import KINDS
from tests.support.apiserver import ApiServer, Object
from tests.support.authorities import cacerts as authority_files
from tests.support.authorities import make_ca, write_files
from tests.support.command import COMMAND
from tests.support.containers import Network, container, network
from tests.support.envoy import eventually, http_client
from tests.webhooks.agent_of_pod import POD_IP, container_of, environment_of
from tools.gen_crds import definitions, istio_kinds

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.envoy, pytest.mark.timeout(300)]

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "kubernetes"
NAMESPACE, ACCOUNT = "istio-system", "mesh-pilot"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@attrs.define(eq=False)
class Cluster:
    """The sample, running."""

    server: ApiServer
    network: Network
    folder: Path
    service: str
    """The address of the Service."""
    discovery: str
    """The host that ``discoveryAddress`` of the sample names."""
    processes: ExitStack

    def start(
        self, name: str, arguments: Sequence[str], env: Mapping[str, str], mounts: Mapping[str, Path], *hosts: str
    ) -> Path:
        """Start a container; its log."""
        folder = self.folder / name
        prefix = container(folder, mounts=mounts, hosts=dict.fromkeys(hosts, self.service))
        log = folder / "log"
        path = f"{Path(COMMAND[0]).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self.network.enter, *prefix, *COMMAND, *arguments],
                stdout=output,
                stderr=output,
                env={"PATH": path, **env},
            )
        self.processes.callback(process.wait)
        self.processes.callback(process.terminate)
        return log


def objects_of(path: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    with ExitStack() as stack:
        net = stack.enter_context(network(POD_IP))
        stack.enter_context(net.joined())
        server = ApiServer(folder / "server")
        stack.callback(server.kill, etcd=True)
        server.start()
        gateway_api = [kind for kind in KINDS.values() if kind.group == "gateway.networking.k8s.io"]
        await server.install(definitions([*istio_kinds(), *gateway_api]))
        await server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        objects = [*objects_of(SAMPLES / "mesh-pilot.yaml"), *objects_of(SAMPLES / "webhooks.yaml")]
        done = await server.apply(*objects)
        (service,) = (each["spec"] for each in done if each["kind"] == "Service")
        (mesh,) = (each["data"]["mesh"] for each in objects if each["kind"] == "ConfigMap")
        host = yaml.safe_load(mesh)["defaultConfig"]["discoveryAddress"].partition(":")[0]
        (deployment,) = (each for each in objects if each["kind"] == "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        (found,) = pod["containers"]
        names = {port["name"]: port["containerPort"] for port in found["ports"]}
        net.run("ip", "address", "add", f"{service['clusterIP']}/32", "dev", "lo")
        rules = [
            f"ip daddr {service['clusterIP']} tcp dport {port['port']} redirect to :{names[port['targetPort']]}"
            for port in service["ports"]
        ]
        lines = ["table ip proxy {", "chain out {", "type nat hook output priority -100;", *rules, "}", "}", ""]
        net.run("nft", "-f", "-", text="\n".join(lines))
        cacerts, state, account = (folder / name for name in ("cacerts", "state", "account"))
        write_files(cacerts, authority_files(make_ca("root")))
        state.mkdir()
        write_account(account, server, await server.account_token(NAMESPACE, ACCOUNT))
        made = Cluster(server, net, folder, service["clusterIP"], host, stack)
        in_cluster = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.ports[0])}
        places = {"cacerts": cacerts, "state": state, "tmp": folder}
        mounts = {m["mountPath"]: places[m["name"]] for m in found["volumeMounts"] if m["name"] != "tmp"}
        log = made.start("plane", found["args"], in_cluster, {**mounts, SERVICE_ACCOUNT: account})
        probe = found["readinessProbe"]["httpGet"]
        await answers(f"http://{POD_IP}:{names[probe['port']]}{probe['path']}", log)
        yield made


def write_account(folder: Path, server: ApiServer, token: str) -> None:
    """The files by which a process in a Pod knows its API server."""
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes((server.folder / "ca.pem").read_bytes())
    (folder / "namespace").write_text(NAMESPACE)


async def answers(url: str, log: Path) -> None:
    """Wait for 200 at this address."""

    def said() -> str:
        return log.read_text()[-3000:]

    async with http_client() as client:

        async def ready() -> bool:
            try:
                return (await client.get(url)).status_code == 200
            except httpx.HTTPError:
                return False

        with trio.fail_after(120):
            await eventually(ready, what=f"200 from {url}: {said()}")


async def injected(made: Cluster, namespace: str) -> Object:
    """A Pod that the webhook has changed, made as soon as the API server trusts it."""
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": namespace, "labels": {"app": "web"}},
        "spec": {"serviceAccountName": "web", "containers": [{"name": "web", "image": "web"}]},
    }
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/mesh-pilot-sidecar-injector"

    async def trusts() -> bool:
        found = await made.server.ask("GET", path)
        return all(base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found["webhooks"])

    with trio.fail_after(60):
        await eventually(trusts, what="the bundle of the webhooks is filled in")
    return await made.server.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


async def roots_of(made: Cluster, namespace: str) -> str:
    """The roots that the leader writes to each namespace."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/istio-ca-root-cert"
    found: list[str] = []

    async def there() -> bool:
        reply = await made.server.request("GET", path)
        found[:] = [reply.json()["data"]["root-cert.pem"]] if reply.is_success else []
        return bool(found)

    with trio.fail_after(60):
        await eventually(there, what="the roots are in the namespace")
    return found[0]


async def test_an_injected_agent_reaches_the_control_plane_by_the_name_that_the_sample_gives_it(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made, made.server.namespace("shop", labels={"istio-injection": "enabled"}):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web", "namespace": "shop"}}
        await made.server.apply(account)
        pod = await injected(made, "shop")
        sidecar: Mapping[str, Any] = container_of(pod, "istio-proxy")
        arguments, variables = sidecar["args"], environment_of(pod)
        assert made.discovery in " ".join([*arguments, *variables.values()])
        files = tmp_path / "files"
        for name in ("istio", "tokens", "pod", "data", "run"):
            (files / name).mkdir(parents=True)
        (files / "istio" / "root-cert.pem").write_text(await roots_of(made, "shop"))
        token = await made.server.account_token("shop", "web", audiences=["istio-ca"])
        (files / "tokens" / "istio-token").write_text(token)
        (files / "pod" / "labels").write_text('app="web"\n')
        (files / "pod" / "annotations").write_text("")
        places = {
            "/var/run/secrets/istio": files / "istio",
            "/var/run/secrets/tokens": files / "tokens",
            "/etc/istio/pod": files / "pod",
            "/var/lib/istio/data": files / "data",
            "/etc/istio/proxy": files / "run",
        }
        mounts = {m["mountPath"]: places[m["mountPath"]] for m in sidecar["volumeMounts"] if m["mountPath"] in places}
        log = made.start("agent", arguments, variables, mounts, made.discovery)
        probe = (sidecar.get("readinessProbe") or sidecar["startupProbe"])["httpGet"]
        await answers(f"http://{POD_IP}:{probe['port']}{probe['path']}", log)
        assert "control plane connected" in log.read_text()
