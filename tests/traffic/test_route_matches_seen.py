"""Requests go where the matches of a VirtualService say: each condition with requests that meet it and that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, routes, service
from tests.support.shop import CLIENT, EDGE, HOST, TO_V1, TO_V2, reviews, shop

pytestmark = pytest.mark.envoy


@attrs.frozen
class Ask:
    """A request to ``SUB.HOST`` of a case."""

    path: str = "/"
    method: str = "GET"
    sub: str = "a"
    headers: Mapping[str, str] = attrs.field(factory=dict)


def with_headers(**headers: str) -> Ask:
    return Ask(headers={name.replace("_", "-"): value for name, value in headers.items()})


def paths(*found: str) -> list[Ask]:
    return [Ask(path) for path in found]


CASES: dict[str, tuple[list[Ask], list[Ask]]] = {
    "uri: {exact: /a}": (paths("/a", "/a?b=c"), paths("/a/", "/ab", "/A", "/")),
    "uri: {prefix: /a}": (paths("/a", "/ab", "/a/b"), paths("/", "/b/a", "/A")),
    'uri: {regex: "/v[0-9]+/.*"}': (paths("/v12/x", "/v1/"), paths("/v/x", "/v1", "/x/v1/y")),
    'uri: {regex: ".*"}': (paths("/", "/any?x=y"), []),
    "{uri: {exact: /Case}, ignoreUriCase: true}": (paths("/case", "/CASE"), paths("/casey")),
    "{uri: {prefix: /Case}, ignoreUriCase: true}": (paths("/case/X", "/CASEY"), paths("/cas")),
    "method: {exact: PUT}": ([Ask(method="PUT")], [Ask(method="POST"), Ask()]),
    'method: {regex: "P.*"}': ([Ask(method="PUT"), Ask(method="POST")], [Ask(method="DELETE")]),
    "authority: {prefix: good.}": ([Ask(sub="good")], [Ask(sub="bad")]),
    'authority: {regex: "[gh]ood[.].*"}': ([Ask(sub="good"), Ask(sub="hood")], [Ask(sub="wood")]),
    "scheme: {exact: https}": ([with_headers(x_forwarded_proto="https")], [Ask()]),
    "headers: {x-a: {exact: b}}": ([with_headers(x_a="b")], [with_headers(x_a="bc"), with_headers(x_a="B"), Ask()]),
    "headers: {x-a: {prefix: b}}": ([with_headers(x_a="bc")], [with_headers(x_a="cb"), Ask()]),
    'headers: {x-a: {regex: "b+"}}': ([with_headers(x_a="bbb")], [with_headers(x_a="bbbc"), Ask()]),
    "headers: {x-a: {}}": ([with_headers(x_a="any"), with_headers(x_a="")], [Ask()]),
    "headers: {x-a: {exact: b}, x-c: {exact: d}}": (
        [with_headers(x_a="b", x_c="d")],
        [with_headers(x_a="b"), with_headers(x_c="d")],
    ),
    "headers: {cookie: {regex: '^(.*?;)?(user=jason)(;.*)?$$'}}": (
        [with_headers(cookie="user=jason"), with_headers(cookie="a=b;user=jason;c=d")],
        [with_headers(cookie="user=jasonette"), Ask()],
    ),
    "headers: {x-a: null}": ([with_headers(x_a="any"), with_headers(x_a="")], [Ask()]),
    "withoutHeaders: {x-a: {}}": ([Ask()], [with_headers(x_a="any")]),
    "withoutHeaders: {x-a: {exact: b}}": ([Ask(), with_headers(x_a="c")], [with_headers(x_a="b")]),
    "{headers: {x-a: {}}, withoutHeaders: {x-b: {prefix: c}}}": (
        [with_headers(x_a="1"), with_headers(x_a="1", x_b="d")],
        [with_headers(x_a="1", x_b="cc"), Ask()],
    ),
    "queryParams: {q: {exact: b}}": (paths("/?q=b", "/?x=y&q=b"), paths("/?q=bc", "/?p=b", "/")),
    "queryParams: {q: {prefix: b}}": (paths("/?q=bc"), paths("/?q=cb", "/")),
    'queryParams: {q: {regex: "[0-9]+"}}': (paths("/?q=12"), paths("/?q=1a", "/?q=", "/")),
    "queryParams: {q: {}}": (paths("/?q=any", "/?q=", "/?q"), paths("/?p=q", "/")),
    "{uri: {prefix: /a}, method: {exact: PUT}, headers: {x-a: {exact: b}}, queryParams: {q: {exact: c}}}": (
        [Ask("/a?q=c", "PUT", headers={"x-a": "b"})],
        [
            Ask("/a?q=c", "GET", headers={"x-a": "b"}),
            Ask("/a?q=d", "PUT", headers={"x-a": "b"}),
            Ask("/b?q=c", "PUT", headers={"x-a": "b"}),
            Ask("/a?q=c", "PUT"),
        ],
    ),
}
"""A match, requests that meet it, requests that do not."""


@pytest.mark.smoke
async def test_each_condition_lets_through_what_meets_it_and_nothing_else(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        backend = await mesh.backend("any")
        hosts = [f"case-{index}.example.com" for index in range(len(CASES))]
        config = service([f"*.{host}" for host in hosts], port, at(backend), name="cases")
        for host, match in zip(hosts, CASES, strict=True):
            whole = match if match.startswith("{") else f"{{{match}}}"
            config += routes(
                f"*.{host}",
                f"- match: [{whole}]\n  directResponse: {{status: 202}}\n- directResponse: {{status: 404}}",
            )
        await mesh.apply(config)
        await mesh.envoy(CLIENT, delta=True)
        wrong = []
        for host, (match, (meet, miss)) in zip(hosts, CASES.items(), strict=True):
            for ask, wanted in [*((a, 202) for a in meet), *((a, 404) for a in miss)]:
                url = f"http://127.0.0.1:{port}{ask.path}"
                reply = await mesh.get(url, host=f"{ask.sub}.{host}", method=ask.method, headers=ask.headers)
                if reply.status_code != wanted:
                    wrong.append((match, ask, reply.status_code))
        assert wrong == []
        await mesh.assert_all_taken()


async def test_the_first_rule_that_matches_counts_and_any_of_its_matches_will_do(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    http = """
    - match: [{uri: {exact: /one}}, {headers: {x-two: {}}}, {uri: {prefix: /both}, method: {exact: PUT}}]
      route: $v2
    - match: [{uri: {prefix: /o}}]
      directResponse: {status: 410}
    - route: $v1
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1, v2=TO_V2) as at:
        assert await at.name("/one") == "v2"
        assert await at.name("/x", headers={"x-two": ""}) == "v2"
        assert await at.name("/both", method="PUT") == "v2"
        assert await at.name("/both") == "v1"
        assert await at.name("/other") == "410"
        assert await at.name("/") == "v1"


async def test_matches_on_ports_hold_on_these_ports_only(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, other = free_ports(2)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        two_ports = service(
            HOST,
            port,
            {"address": "127.0.0.1", "ports": {"main": v1.port, "more": v2.port}},
            ports=[
                {"number": port, "name": "main", "protocol": "HTTP"},
                {"number": other, "name": "more", "protocol": "HTTP"},
            ],
        )
        http = """
        - match: [{port: $other, uri: {prefix: /x}}]
          directResponse: {status: 202}
        - match: [{uri: {prefix: /to-more}}]
          route: [{destination: {host: reviews.example.com, port: {number: $other}}}]
        - route: [{destination: {host: reviews.example.com}}]
        """
        await mesh.apply(two_ports + routes(HOST, http, other=other))
        await mesh.envoy(CLIENT)

        async def status_and_name(number: int, path: str) -> tuple[int, str]:
            reply = await mesh.get(f"http://127.0.0.1:{number}{path}", host=HOST)
            return reply.status_code, reply.json()["name"] if reply.content else ""

        assert await status_and_name(port, "/x") == (200, "v1")
        assert await status_and_name(other, "/x") == (202, "")
        assert await status_and_name(port, "/") == (200, "v1")
        assert await status_and_name(other, "/") == (200, "v2"), "without a port, the one that the client used"
        assert await status_and_name(port, "/to-more") == (200, "v2")
        await mesh.assert_all_taken()


SOURCES = """
- match: [{sourceLabels: {app: teller}, uri: {prefix: /}}]
  route: $v2
- match: [{sourceNamespace: bank}]
  directResponse: {status: 410}
- match: [{gateways: [shop/edge], headers: {x-beta: {}}}]
  route: $v2
- route: $v1
"""


def bound_to(name: str, namespace: str, address: str, port: int) -> str:
    """A Sidecar that listens for a port on its own address: several proxies then share this machine."""
    spec = """
    workloadSelector: {labels: {app: $name}}
    egress: [{port: {number: $port, name: http, protocol: HTTP}, bind: $address, hosts: ["shop/*"]}]
    """
    return manifest("Sidecar", name, spec, namespace=namespace, name=name, port=port, address=address)


async def test_rules_are_for_clients_with_these_labels_in_this_namespace_or_behind_this_gateway(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, edge_port = free_ports(2)
    clients = (("web", "shop", "127.0.0.11"), ("teller", "shop", "127.0.0.12"), ("clerk", "bank", "127.0.0.13"))
    gateway = """
    selector: {istio: edge}
    servers: [{port: {number: $port, name: http, protocol: HTTP}, hosts: [reviews.example.com]}]
    """
    async with fleet(tmp_path) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        await mesh.apply(
            reviews(port, v1, v2)
            + routes(HOST, SOURCES, gateways=("mesh", "shop/edge"), v1=TO_V1, v2=TO_V2)
            + manifest("Gateway", "edge", gateway, port=edge_port)
            + "".join(bound_to(name, namespace, address, port) for name, namespace, address in clients)
        )
        for name, namespace, address in clients:
            await mesh.envoy(EnvoyNode(name, namespace, address, labels={"app": name}, interception=Interception.NONE))
        await mesh.envoy(EDGE)

        async def answer(address: str, number: int, **headers: str) -> str:
            return next(iter(await mesh.names(f"http://{address}:{number}/", host=HOST, count=1, headers=headers)))

        assert await answer("127.0.0.11", port) == "v1"
        assert await answer("127.0.0.12", port) == "v2"
        assert await answer("127.0.0.13", port) == "410"
        assert await answer("127.0.0.11", port, **{"x-beta": "1"}) == "v1"
        assert await answer("127.0.0.1", edge_port) == "v1"
        assert await answer("127.0.0.1", edge_port, **{"x-beta": "1"}) == "v2"
        await mesh.assert_all_taken()


DELEGATES = """
- match: [{uri: {prefix: /team}, headers: {x-a: {exact: b}}}]
  delegate: {name: team, namespace: crew}
- match: [{uri: {prefix: /gone}}]
  delegate: {name: nobody, namespace: crew}
- route: $v1
"""
TEAM = """
http:
- match: [{uri: {prefix: /team/new}}]
  route: $v2
- match: [{uri: {exact: /team/tea}}]
  directResponse: {status: 418}
"""


async def test_delegates_route_what_their_root_leaves_to_them(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    values = {"v1": TO_V1, "v2": TO_V2}
    team = manifest("VirtualService", "team", TEAM, namespace="crew", **values)
    async with shop(tmp_path, port, DELEGATES, delta=True, more=team, **values) as at:
        into = {"x-a": "b"}
        assert await at.name("/team/new/x", headers=into) == "v2"
        assert await at.name("/team/tea", headers=into) == "418"
        assert await at.name("/team/other", headers=into) == "v1"
        assert await at.name("/team/new") == "v1", "the root's conditions hold too"
        assert await at.name("/gone") == "v1"
        await at.mesh.apply(manifest("VirtualService", "nobody", TEAM.replace("/team", "/gone"), namespace="crew",
                                     **values), "late.yaml")  # fmt: skip

        async def late() -> bool:
            return await at.name("/gone/new") == "v2"

        await eventually(late)


async def test_virtual_services_are_seen_where_they_are_exported(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """A private one of another namespace does not count; the client's own private one wins over a public one."""
    (port,) = free_ports(1)

    def answering(name: str, namespace: str, export: str, status: int, host: str = HOST) -> str:
        spec = f"hosts: [{host}]\nexportTo: [{export}]\nhttp: [{{directResponse: {{status: {status}}}}}]"
        return manifest("VirtualService", name, spec, namespace=namespace)

    async with fleet(tmp_path) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        await mesh.apply(reviews(port, v1, v2) + answering("theirs", "bank", '"."', 410))
        await mesh.envoy(CLIENT)
        url = f"http://127.0.0.1:{port}/"

        async def answers(status: int) -> None:
            async def does() -> bool:
                return (await mesh.get(url, host=HOST)).status_code == status

            await eventually(does, what=f"answered with {status}")

        await answers(200)
        await mesh.apply(answering("to-all", "bank", '"*"', 411), "all.yaml")
        await answers(411)
        await mesh.apply(answering("to-us", "bank", "shop", 412), "us.yaml")
        await answers(412)
        await mesh.apply(answering("ours", "shop", '"."', 413), "ours.yaml")
        await answers(413)
        await mesh.assert_all_taken()


@pytest.mark.parametrize("delta", [True, False])
async def test_a_host_is_the_same_whatever_port_or_final_dot_it_has(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    """The routes hold for each spelling: otherwise requests pass them by, and mutual TLS with them."""
    (port,) = free_ports(1)
    async with shop(tmp_path, port, "- {route: $v2}", delta=delta, v2=TO_V2) as at:
        for spelled in (HOST, f"{HOST}.", f"{HOST}:{port}", f"{HOST}:9999", HOST.upper()):
            assert await at.name("/", host=spelled) == "v2", spelled
        assert await at.name("/", host="elsewhere.example.com") != "v2"
