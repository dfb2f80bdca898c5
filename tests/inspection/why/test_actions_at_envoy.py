"""What ``why`` says of upgrades, gRPC, shares, subsets and localities is what a real Envoy does with its own dump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.explain.inspection.dump import read_dump
from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.explain.inspection.why.story import explain
from tests.support.binaries import require_binary

pytestmark = pytest.mark.envoy

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
EVERY = {"prefix": "/"}


def answers(status: int, body: str = "") -> dict[str, Any]:
    return {"direct_response": {"status": status, "body": {"inline_string": body}}}


def share(percent: int) -> dict[str, Any]:
    return {**EVERY, "runtime_fraction": {"default_value": {"numerator": percent}}}


def of_subset(cluster: str, **labels: str) -> dict[str, Any]:
    metadata = {"metadata_match": {"filter_metadata": {"envoy.lb": labels}}} if labels else {}
    return {"match": EVERY, "route": {"cluster": cluster, **metadata}}


ROUTES: Mapping[str, list[dict[str, Any]]] = {
    "grpc.test": [{"match": {**EVERY, "grpc": {}}, "route": {"cluster": "plain"}}, {"match": EVERY, **answers(202)}],
    "tunnel.test": [{"match": {"connect_matcher": {}}, **answers(201)}, {"match": EVERY, **answers(202)}],
    "pathless.test": [{"match": EVERY, **answers(202)}],
    "up.test": [
        {"match": {"prefix": "/on"}, "route": {"cluster": "plain", "upgrade_configs": [{"upgrade_type": "foo"}]}},
        {
            "match": {"prefix": "/off"},
            "route": {"cluster": "plain", "upgrade_configs": [{"upgrade_type": "websocket", "enabled": False}]},
        },
        {"match": {"prefix": "/plain"}, "route": {"cluster": "plain"}},
    ],
    "shares.test": [
        {"match": share(50), **answers(201)},
        {"match": share(40), **answers(202)},
        {"match": EVERY, **answers(203)},
    ],
    "v1.test": [of_subset("none", version="v1")],
    "v9.none.test": [of_subset("none", version="v9")],
    "v9.any.test": [of_subset("any", version="v9")],
    "v9.default.test": [of_subset("default", version="v9")],
    "other.any.test": [of_subset("any", zone="a")],
    "keys.test": [of_subset("keys", version="v1", zone="z")],
    "all.none.test": [of_subset("none")],
    "v1.plain.test": [of_subset("plain", version="v1")],
    "localities.test": [of_subset("localities")],
    "weighted.test": [of_subset("weighted")],
}


def listener(port: int, hosts: Mapping[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    manager = {
        "@type": HCM,
        "stat_prefix": "x",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
        "strip_any_host_port": True,
        "route_config": {
            "name": "table",
            "virtual_hosts": [{"name": name, "domains": [name], "routes": routes} for name, routes in hosts.items()],
        },
        **more,
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {"name": f"on {port}", "address": address, "filter_chains": [{"filters": filters}]}


def cluster(name: str, ports: list[int], weights: tuple[int, int] = (1, 1), **more: Any) -> dict[str, Any]:
    """Two localities: the first has one endpoint (v1), the second two (v2, v3)."""
    ends = []
    for number, port in enumerate(ports):
        labels = {"version": f"v{number + 1}", "zone": "a" if number else "b"}
        address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        ends.append({"endpoint": {"address": address}, "metadata": {"filter_metadata": {"envoy.lb": labels}}})
    groups = [
        {"locality": {"zone": zone}, "load_balancing_weight": weight, "lb_endpoints": members}
        for zone, weight, members in (("west", weights[0], ends[:1]), ("east", weights[1], ends[1:]))
    ]
    assignment = {"cluster_name": name, "endpoints": groups}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def subsets(policy: str, *selectors: dict[str, Any], **more: Any) -> dict[str, Any]:
    chosen = list(selectors) or [{"keys": ["version"]}]
    return {"lb_subset_config": {"fallback_policy": policy, "subset_selectors": chosen, **more}}


def clusters(ports: list[int]) -> list[dict[str, Any]]:
    both = {"keys": ["version", "zone"], "fallback_policy": "KEYS_SUBSET", "fallback_keys_subset": ["version"]}
    return [
        cluster("plain", ports),
        cluster("none", ports, **subsets("NO_FALLBACK")),
        cluster("any", ports, **subsets("ANY_ENDPOINT")),
        cluster("default", ports, **subsets("DEFAULT_SUBSET", default_subset={"version": "v2"})),
        cluster("keys", ports, **subsets("NO_FALLBACK", {"keys": ["version"]}, both)),
        cluster("localities", ports, (3, 1)),
        cluster("weighted", ports, (3, 1), common_lb_config={"locality_weighted_lb_config": {}}),
    ]


async def status_of(port: int, text: str) -> tuple[int, str]:
    """(status, body) of the answer to a request as it is written."""
    got = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(text.encode())
        while not _is_whole(got) and (more := await stream.receive_some()):
            got += more
    head, _, body = got.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


def _is_whole(got: bytes) -> bool:
    head, end, body = got.partition(b"\r\n\r\n")
    _, has_length, rest = head.partition(b"content-length: ")
    return bool(end) and (not has_length or len(body) >= int(rest.partition(b"\r\n")[0]))


UPGRADE = ["connection=upgrade"]
ASKED = [
    *(("grpc.test/", "POST", [f"content-type={kind}"]) for kind in (
        "application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpcx", "text/plain",
    )),
    ("tunnel.test", "CONNECT", []),
    ("pathless.test", "CONNECT", []),
    ("tunnel.test/", "GET", []),
    *((f"up.test/{path}", "GET", [*UPGRADE, f"upgrade={kind}"])
      for path in ("on", "off", "plain") for kind in ("foo", "websocket")),
    ("up.test/plain", "GET", ["upgrade=foo"]),
    ("up.test/nowhere", "GET", [*UPGRADE, "upgrade=foo"]),
    ("up.test/nowhere", "GET", [*UPGRADE, "upgrade=websocket"]),
]  # fmt: skip


async def test_what_why_says_of_actions_is_what_envoy_does(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    front, tunnels, *ports = free_ports(5)
    backends = [
        listener(
            port,
            {"*": [{"match": EVERY, **answers(200, f"{port};")}]},
            upgrade_configs=[{"upgrade_type": "websocket"}, {"upgrade_type": "foo"}],
        )
        for port in ports
    ]
    bootstrap = {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [
                *backends,
                listener(front, ROUTES, upgrade_configs=[{"upgrade_type": "websocket"}]),
                listener(tunnels, ROUTES, upgrade_configs=[{"upgrade_type": "CONNECT"}]),
            ],
            "clusters": clusters(ports),
        },
    }
    async with running_envoy(bootstrap, tmp_path) as envoy, httpx.AsyncClient(timeout=60) as client:
        with trio.fail_after(60):
            await envoy.wait_live()
        with trio.fail_after(120):
            await _compare(f"http://{envoy.admin}", client, front, tunnels)


async def _compare(admin: str, client: httpx.AsyncClient, front: int, tunnels: int) -> None:
    dump = (await client.get(f"{admin}/config_dump?include_eds")).text
    evidence = DumpEvidence(read_dump(dump))
    wrong: list[Any] = []
    for port in (front, tunnels):
        for target, method, headers in ASKED:
            host, _, path = target.partition("/")
            lines = "".join(f"{header.replace('=', ': ')}\r\n" for header in headers)
            where = f"{host}:{port}" if method == "CONNECT" else f"/{path}"
            seen, _ = await status_of(port, f"{method} {where} HTTP/1.1\r\nhost: {host}:{port}\r\n{lines}\r\n")
            asked = parse_request(f"{host}:{port}/{path}", headers, method=method)
            answer = explain(evidence, asked)
            status = answer.result.get("status", 200)
            if status != seen:
                wrong.append((port == tunnels, target, method, headers, seen, answer.outcome))
    assert wrong == []

    async def spread(host: str, count: int = 40) -> tuple[Counter[str], Counter[int]]:
        bodies, statuses = Counter[str](), Counter[int]()
        for _ in range(count):
            status, body = await status_of(front, f"GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")
            statuses[status] += 1
            bodies[body] += status == 200
        return bodies, statuses

    for host in ROUTES:
        answer = explain(evidence, parse_request(f"{host}:{front}/"))
        if answer.result["kind"] != "cluster" or host == "up.test":
            continue
        bodies, statuses = await spread(host)
        (step,) = (step for step in answer.steps if step.step == "endpoints")
        shares = {each["address"].rpartition(":")[2] + ";": each["share"] for each in step.details["endpoints"]}
        for name in {*shares, *(body for body, count in bodies.items() if count)}:
            if abs(100 * bodies[name] / 40 - shares.get(name, 0)) > 8:
                wrong.append((host, name, dict(bodies), dict(statuses), shares))
    assert wrong == []

    _, statuses = await spread("shares.test", 100)
    answer = explain(evidence, parse_request(f"shares.test:{front}/"))
    portions = [step.details["share"] for step in answer.steps if step.step == "route"]
    assert portions == [50, 0, None]
    assert statuses[202] == 0 < min(statuses[201], statuses[203])
