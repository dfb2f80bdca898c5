"""Secrets are planted wherever people put them, and every output there is is looked at: pages, API, logs, reports."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import structlog
import trio
from click.testing import CliRunner
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from starlette.routing import Mount, Route

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.lib.logs import LogFormat, configure, parse_levels
from mesh_pilot.cli.operate.bug_report import command as bug_report
from mesh_pilot.explain.plan.picture import read_picture
from mesh_pilot.model.redaction import REDACTED
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.app import debug_app
from mesh_pilot.ops.monitoring import monitoring_app
from tests.support.envoy import eventually
from tests.support.plane_process import PlaneProcess
from tests.support.planes import running_plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


def planted(number: int) -> str:
    """A secret whose place is known by its number."""
    return f"pLanted{number:02}SecretZ9"


def key(number: int) -> str:
    return f"-----BEGIN PRIVATE KEY-----\\n{planted(number)}\\n-----END PRIVATE KEY-----"


JWT = f"eyJhbGciOiJub25lIn0.eyJ{planted(17)}.sig{planted(17)}"
ENCODED = base64.b64encode(f"-----BEGIN PRIVATE KEY-----\n{planted(12)}\n-----END PRIVATE KEY-----\n".encode()).decode()

# fmt: off
# ruff: noqa: E501
OBJECTS = f"""\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: reviews
  namespace: shop
  annotations: {{"example.com/api-token": "{planted(1)}"}}
spec:
  hosts: [reviews.test]
  resolution: STATIC
  ports: [{{number: 9080, name: http, protocol: HTTP}}]
  endpoints: [{{address: 10.0.0.1, labels: {{version: v1}}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [reviews.test]
  http:
  - match:
    - headers: {{x-api-key: {{exact: {planted(2)}}}, cookie: {{regex: "user=jason"}}}}
    headers:
      request: {{set: {{authorization: "Basic {base64.b64encode(planted(3).encode()).decode()}", x-vault-token: hvs.{planted(4)}xxxxxxxxxx}}}}
    route: [{{destination: {{host: reviews.test}}}}]
  - headers: {{request: {{add: {{x-upstream: "https://user:{planted(5)}@up.test/?a=1&api_key={planted(6)}"}}}}}}
    route: [{{destination: {{host: reviews.test}}}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{name: keys, namespace: shop}}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {{cluster: {{service: reviews.test}}}}
    patch:
      operation: MERGE
      value:
        transport_socket:
          name: envoy.transport_sockets.tls
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
            common_tls_context:
              tls_certificates:
              - certificate_chain: {{inline_string: "certificate"}}
                private_key: {{inline_string: "{key(7)}"}}
                password: {{inline_string: "{planted(8)}"}}
  - applyTo: HTTP_FILTER
    match: {{context: SIDECAR_OUTBOUND, listener: {{filterChain: {{filter: {{name: envoy.filters.network.http_connection_manager, subFilter: {{name: envoy.filters.http.router}}}}}}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {{inline_string: "local k = '{key(9)}' local t = 'Bearer {planted(10)}'"}}
  - applyTo: HTTP_FILTER
    match: {{context: SIDECAR_OUTBOUND, listener: {{filterChain: {{filter: {{name: envoy.filters.network.http_connection_manager, subFilter: {{name: envoy.filters.http.router}}}}}}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: injector
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.credential_injector.v3.CredentialInjector
          credential:
            name: envoy.http.injected_credentials.generic
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
              name: odd
              generic_secret: {{secret: {{inline_string: "{planted(11)}"}}}}
  - applyTo: CLUSTER
    match: {{cluster: {{service: reviews.test}}}}
    patch:
      operation: MERGE
      value: {{metadata: {{filter_metadata: {{mine: {{note: "{ENCODED}"}}}}}}}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: users, namespace: shop}}
spec:
  jwtRules:
  - issuer: https://login.test
    jwksUri: http://user:{planted(13)}@127.0.0.1:1/jwks?api_key={planted(14)}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: keyed, namespace: shop}}
spec:
  rules:
  - when: [{{key: "request.headers[x-api-key]", values: ["{planted(15)}"]}}]
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: module, namespace: shop}}
spec:
  url: http://user:{planted(16)}@127.0.0.1:1/m.wasm?token={planted(18)}
  pluginConfig: {{client_secret: "{planted(19)}", upstream: "{JWT}"}}
  vmConfig: {{env: [{{name: VAULT_TOKEN, value: "{planted(20)}"}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: refused, namespace: shop}}
spec:
  hosts: ["https://user:{planted(21)}@refused.test"]
  http: [{{route: [{{destination: {{host: reviews.test}}}}]}}]
"""

MESH = f"""\
caCertificates:
- spiffeBundleUrl: https://127.0.0.1:1/bundle?access_token={planted(22)}
  trustDomains: [other.test]
defaultConfig: {{proxyMetadata: {{DATADOG_API_KEY: "{planted(23)}"}}}}
extensionProviders:
- name: authz
  envoyExtAuthzHttp:
    service: reviews.test
    port: 9080
    includeAdditionalHeadersInCheck: {{x-api-key: "{planted(24)}"}}
"""
SECRETS = [planted(number) for number in range(1, 27)]

# fmt: on


def found_in(text: str | bytes) -> list[str]:
    """The secrets that are in a string, as they are or encoded."""
    content = text.encode() if isinstance(text, str) else text
    shown = [secret for secret in SECRETS if secret.encode() in content]
    encoded = [base64.b64encode(b" " * shift + secret.encode())[4:-4] for secret in SECRETS for shift in range(3)]
    return shown + [each.decode() for each in encoded if each in content]


def paths(plane: ControlPlane) -> Iterator[str]:
    """Every path of the web port that answers GET for good."""
    values = {
        "worker": "1", "revision": "1", "order": "1", "namespace": "shop", "host": "reviews.test", "kind": "VirtualService",
    }  # fmt: skip
    for route in flat(debug_app(plane.state).routes):
        if "GET" not in (route.methods or ()) or route.path.endswith(("/events", "/profile/cpu", "/profile/memory")):
            continue
        names = [part.partition(":")[0] for part in route.param_convertors]
        for change in (
            [{"kind": kind, "name": name} for kind, name in KINDS]
            if "kind" in names
            else [{"type": short, "name": "web.shop"} for short in ("CDS", "LDS", "RDS")]
            if "type" in names
            else [{"name": "web.shop"}]
        ):
            text = route.path
            for each in route.param_convertors:
                value = {**values, **change}.get(each, "x")
                text = text.replace(f"{{{each}}}", value).replace(f"{{{each}:path}}", value)
            for query in QUERIES:
                yield f"{text}{query}"


KINDS = [
    ("VirtualService", "reviews"), ("ServiceEntry", "reviews"), ("EnvoyFilter", "keys"), ("WasmPlugin", "module"),
    ("RequestAuthentication", "users"), ("AuthorizationPolicy", "keyed"),
]  # fmt: skip
QUERIES = [
    "",
    "?verbose",
    "?proxyID=web.shop",
    "?resource=outbound%7C9080%7C%7Creviews.test",
    "?resource=9080",
    "?resource=0.0.0.0_9080",
    "?proxy=web.shop&url=http://reviews.test:9080/",
    "?q=reviews",
]


def flat(routes: object) -> Iterator[Route]:
    assert isinstance(routes, list)
    for route in routes:
        if isinstance(route, Mount):
            yield from flat(route.routes)
        elif isinstance(route, Route):
            yield route


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The folders and files of a control plane in which secrets are planted."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "objects.yaml").write_text(OBJECTS)
    (tmp_path / "mesh.yaml").write_text(MESH)
    return {"config": tmp_path / "config", "mesh": tmp_path / "mesh.yaml", "state": tmp_path / "state"}


async def ask_as_a_proxy(plane: ControlPlane, done: trio.Event) -> None:
    """A proxy with a secret in its metadata that takes its configuration and refuses some of it, quoting a secret."""
    node = Node(id="sidecar~10.0.0.1~web.shop~shop.svc.cluster.local")
    node.metadata.update({"LABELS": {"app": "web"}, "API_TOKEN": planted(25)})
    async with (
        open_channel(plane.addresses.grpc) as channel,
        channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as call,
    ):
        for type_url, names in ((CLUSTER, []), (LISTENER, []), (ROUTE, ["9080"])):
            await call.send_message(DiscoveryRequest(type_url=type_url, node=node, resource_names=names))
            answer = await call.recv_message()
            assert answer is not None
            reply = DiscoveryRequest(
                type_url=type_url, resource_names=names, response_nonce=answer.nonce, version_info=answer.version_info
            )
            if type_url == ROUTE:
                reply.version_info = ""
                reply.error_detail.message = f"cannot use https://user:{planted(26)}@nack.test"
            await call.send_message(reply)
        done.set()
        await trio.sleep_forever()


@pytest.mark.plane
@pytest.mark.parametrize("style", [LogFormat.TEXT, pytest.param(LogFormat.JSON, marks=pytest.mark.slow)])
async def test_no_secret_is_in_any_answer_log_line_picture_or_report(
    folders: dict[str, Path], tmp_path: Path, style: LogFormat
) -> None:
    log, leaks, answers = io.StringIO(), {}, 0
    before = structlog.get_config()
    configure(parse_levels("default:debug"), style, log)
    try:
        async with (
            running_plane(folders["config"], mesh_config=folders["mesh"]) as plane,
            trio.open_nursery() as nursery,
            httpx.AsyncClient(trust_env=False, timeout=60) as client,
        ):
            asked = trio.Event()
            nursery.start_soon(ask_as_a_proxy, plane, asked)
            await asked.wait()
            await eventually(lambda: plane.state.xds.status.totals.rejects.total() == 1, what="it has refused")
            bases = [f"http://{plane.addresses.http}{path}" for path in paths(plane)]
            bases += [
                f"http://{plane.addresses.monitoring}{each.path}" for each in flat(monitoring_app(plane.state).routes)
            ]
            for url in dict.fromkeys(bases):
                reply = await client.get(url)
                answers += reply.status_code == 200
                if found := found_in(reply.content):
                    leaks[url] = found
                assert reply.headers["x-content-type-options"] == "nosniff", url
                if url.endswith("/api/v1/picture"):
                    shown = "\n".join(map(repr, read_picture(reply.json()).items.items()))
                    assert "reviews.test" in shown
                    if found := found_in(shown):
                        leaks["picture"] = [
                            *found,
                            *(s[max(0, s.find(found[0]) - 200) :][:300] for s in shown.splitlines() if found_in(s)),
                        ]
                if url.endswith("/resource/CDS?resource=outbound%7C9080%7C%7Creviews.test"):
                    assert "[redacted]" in reply.text
                    assert "common_tls_context" in reply.text
            into = tmp_path / "report.tar.gz"
            words = ["--pilot", plane.addresses.http, "--into", str(into)]
            done = await trio.to_thread.run_sync(partial(CliRunner().invoke, bug_report, words))
            assert into.exists(), done.output
            with tarfile.open(into) as archive:
                for member in archive.getmembers():
                    file = archive.extractfile(member)
                    if file is not None and (found := found_in(file.read())):
                        leaks[f"bug report, {member.name}"] = found
            nursery.cancel_scope.cancel()
    finally:
        structlog.configure(**before)
    assert answers > 100
    assert "127.0.0.1:1/jwks" in log.getvalue(), "the failure is logged"
    leaks |= {line: found for line in log.getvalue().splitlines() if (found := found_in(line))}
    assert leaks == {}


@pytest.mark.plane
async def test_what_is_shown_in_place_of_a_secret_does_not_go_back_into_the_store(folders: dict[str, Path]) -> None:
    async with (
        running_plane(folders["config"], config_store=str(folders["config"]), admin_socket=folders["state"]),
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(folders["state"])), timeout=60) as client,
    ):
        url = "http://mesh-pilot/api/v1/config/RequestAuthentication/shop/users"
        read = await client.get(url)
        assert REDACTED in read.text
        assert found_in(read.text) == []
        reply = await client.put(url, content=json.dumps(read.json()))
        assert reply.status_code == 422, reply.text
        assert "write the secret itself" in reply.text
    assert planted(13) in (folders["config"] / "objects.yaml").read_text()


@pytest.mark.process
async def test_no_secret_is_printed_at_the_start(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    log = tmp_path / "output"
    url = f"http://user:{planted(1)}@127.0.0.1:1"
    flags = ("--no-state", "--sync-timeout", "1s", "--consul-server-url", url)
    plane = PlaneProcess(log, free_ports(3), *flags)
    await plane.start()
    await plane.terminate()
    refused = PlaneProcess(log, free_ports(3), *flags, "--mcp-server", f"nothing://user:{planted(2)}@here")
    assert await refused.fail_to_start() != 0
    assert f"Consul at http://{REDACTED}@127.0.0.1:1" in log.read_text()
    assert found_in(log.read_text()) == []
