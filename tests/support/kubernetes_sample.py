"""samples/kubernetes, running as it stands: its containers' arguments at its ports, with what it mounts there.

async with cluster(tmp_path) as made:
    await made.server.ask("POST", f"/api/v1/namespaces/shop/pods", pod)     # is injected

A real API server takes the files and asks the webhooks by their Service, which has the address that it was given there;
redirecting its port is what kube-proxy does. All of it, and the caller's thread, is in its own network.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import attrs
import httpx
import trio
import yaml

from mesh_pilot.istio.kinds import KINDS
from tests.support.apiserver import ApiServer, Object
from tests.support.authorities import cacerts as authority_files
from tests.support.authorities import make_ca, write_files
from tests.support.command import COMMAND
from tests.support.containers import Network, container, network
from tests.support.envoy import eventually, http_client
from tests.webhooks.agent_of_pod import POD_IP
from tools.gen_crds import definitions, istio_kinds

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
                env={"PATH": path, **python_path(), **env},
            )
        self.processes.callback(process.wait)
        self.processes.callback(process.terminate)
        return log


def python_path() -> Mapping[str, str]:
    """The variable that leads Python to our code, if it is not installed."""
    return {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}


def objects_of(path: Path) -> list[Object]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


@asynccontextmanager
async def cluster(folder: Path, gateway_api: Iterable[Object] = ()) -> AsyncIterator[Cluster]:
    """The sample, ready. ``gateway_api``: definitions of these kinds other than ours."""
    with ExitStack() as stack:
        net = stack.enter_context(network(POD_IP))
        stack.enter_context(net.joined())
        server = ApiServer(folder / "server", has_accounts=True)
        stack.callback(server.kill, etcd=True)
        server.start()
        kinds = [kind for kind in KINDS.values() if kind.group == "gateway.networking.k8s.io"]
        await server.install([*definitions(istio_kinds()), *(gateway_api or definitions(kinds))])
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
