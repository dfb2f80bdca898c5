"""The cost of metrics of requests: CPU time of two sidecars with mutual TLS between them, with and without, under wrk.

    python -m bench.request_metrics [SECONDS]

Envoy's CPU time for each request, not the rate: on a busy machine the rate says more of the neighbours. wrk is Debian's
package.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Json, envoy_bootstrap
from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.demo.envoy_process import EnvoyProcess, running_envoy
from mesh_pilot.model.proxy import Interception

HOST = "web.bench"
CLIENT, SERVER, APP = 19080, 19081, 19082
ROUNDS = 3
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"

CONFIG = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: web, namespace: bench}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {CLIENT}, name: http, protocol: HTTP, targetPort: {SERVER}}}]
  endpoints: [{{address: 127.0.0.4, labels: {{app: web}}, serviceAccount: web}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: web, namespace: bench}}
spec:
  workloadSelector: {{labels: {{app: web}}}}
  ingress: [{{port: {{number: {SERVER}, name: http, protocol: HTTP}}, defaultEndpoint: "127.0.0.1:{APP}"}}]
  egress: [{{hosts: ["~/*"]}}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: default, namespace: bench}}
spec: {{mtls: {{mode: STRICT}}}}
"""
OVERRIDE = """
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: bench, namespace: bench}
spec: {metrics: [{overrides: [{tagOverrides: {a: {value: "request.url_path.startsWith('/a') ? 'a' : 'b'"}}}]}]}
"""
CASES = {
    "off": ("{}", CONFIG),
    "on": ("defaultProviders: {metrics: [prometheus]}", CONFIG),
    "on, a label in CEL": ("defaultProviders: {metrics: [prometheus]}", CONFIG + OVERRIDE),
}


def node(name: str, ip: str) -> EnvoyNode:
    return EnvoyNode(
        name, "bench", ip, labels={"app": name}, interception=Interception.NONE, metadata={"SERVICE_ACCOUNT": name}
    )


def app() -> dict[str, Json]:
    """An Envoy that answers everything itself."""
    route: Json = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "ok"}}}
    manager: Json = {
        "@type": MANAGER,
        "stat_prefix": "app",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
    }
    listener: Json = {
        "name": "app",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": APP}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    admin: Json = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return {"admin": admin, "static_resources": {"listeners": [listener]}}


@asynccontextmanager
async def mesh(config: str, mesh_config: str) -> AsyncIterator[list[EnvoyProcess]]:
    """The client's and the server's Envoy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config").mkdir()
        (folder / "config" / "bench.yaml").write_text(config, encoding="utf-8")
        (folder / "mesh.yaml").write_text(mesh_config, encoding="utf-8")
        anywhere = "127.0.0.1:0"
        settings = Settings(
            config_dirs=(folder / "config",),
            mesh_config=folder / "mesh.yaml",
            grpc_addr=anywhere,
            secure_grpc_addr=anywhere,
            trust_local=True,
            http_addr=anywhere,
            monitoring_addr=anywhere,
        )
        async with control_plane(settings) as plane, running_envoy(app(), folder, name="app"):
            await plane.wait_ready()
            pilot = plane.addresses.grpc
            server, client = (
                envoy_bootstrap(each, pilot) for each in (node("web", "127.0.0.4"), node("load", "127.0.0.2"))
            )
            async with (
                running_envoy(server, folder, name="server") as behind,
                running_envoy(client, folder, name="client") as before,
            ):
                for envoy in (behind, before):
                    await envoy.wait_live()
                await trio.sleep(1)
                yield [before, behind]


def cpu_seconds(envoy: EnvoyProcess) -> float:
    fields = Path(f"/proc/{envoy.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(seconds: int) -> int:
    """How many requests were answered well."""
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s", "-H", f"Host: {HOST}", f"http://127.0.0.1:{CLIENT}/"]
    said = (await trio.run_process(command, capture_stdout=True)).stdout.decode()
    if "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(said)
    found = re.search(r"(\d+) requests in", said)
    if found is None:
        raise SystemExit(said)
    return int(found[1])


async def measure(seconds: int) -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, (mesh_config, config) in CASES.items():
            async with mesh(config, mesh_config) as envoys:
                await load(1)
                before = [cpu_seconds(envoy) for envoy in envoys]
                requests = await load(seconds)
                spent = [cpu_seconds(envoy) - old for envoy, old in zip(envoys, before, strict=True)]
                found[name].append([each / requests * 1e6 for each in spent])
    best = {name: [min(values) for values in zip(*rounds, strict=True)] for name, rounds in found.items()}
    for name, values in best.items():
        ratios = [value / base for value, base in zip(values, best["off"], strict=True)]
        told = ", ".join(
            f"{who} {v:.1f} us ({r:.2f})" for who, v, r in zip(("client", "server"), values, ratios, strict=True)
        )
        print(f"{name:20} {told}")


if __name__ == "__main__":
    trio.run(measure, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
