"""What the rules of a VirtualService do to requests and their answers, seen from both ends of a real Envoy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, routes, service
from tests.support.shop import CLIENT, HOST, TO_V1, TO_V2, shop

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


async def test_requests_are_split_by_weight_with_headers_of_each_destination(tmp_path: Path, free_ports: Ports) -> None:
    http = """
    - match: [{uri: {prefix: /none}}]
      route:
      - {destination: {host: reviews.example.com, subset: v1}, weight: 100}
      - {destination: {host: reviews.example.com, subset: v2}, weight: 0}
    - route:
      - destination: {host: reviews.example.com, subset: v1}
        weight: 75
        headers: {request: {set: {x-lane: main}}, response: {set: {x-by: one}, remove: [content-type]}}
      - destination: {host: reviews.example.com, subset: v2}
        weight: 25
        headers: {request: {set: {host: canary.example.com}, add: {x-lane: side}}, response: {add: {x-by: two}}}
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, delta=True) as at:
        replies = [await at.ask() for _ in range(200)]
        said = [(r.json(), r.headers) for r in replies]
        share = Counter(seen["name"] for seen, _ in said)
        assert 15 < share["v2"] < 90, share
        for seen, headers in said:
            asked = seen["headers"]
            if seen["name"] == "v1":
                assert (asked["x-lane"], asked["host"], headers["x-by"]) == ("main", HOST, "one")
                assert "content-type" not in headers
            else:
                assert (asked["x-lane"], asked["host"], headers["x-by"]) == ("side", "canary.example.com", "two")
        assert {await at.name("/none") for _ in range(20)} == {"v1"}


REDIRECTS = {
    "{uri: /new, authority: new.example.com}": (301, "http://new.example.com/new?q=1"),
    "{uri: /new, redirectCode: 302}": (302, "http://$host/new?q=1"),
    "{redirectCode: 303, authority: new.example.com}": (303, "http://new.example.com/$n/rest?q=1"),
    "{redirectCode: 307, scheme: https}": (307, "https://$host/$n/rest?q=1"),
    "{redirectCode: 308, port: 8443, scheme: https}": (308, "https://$host:8443/$n/rest?q=1"),
    "{authority: new.example.com, derivePort: FROM_REQUEST_PORT}": (301, "http://new.example.com:$port/$n/rest?q=1"),
    "{authority: new.example.com, derivePort: FROM_PROTOCOL_DEFAULT}": (301, "http://new.example.com/$n/rest?q=1"),
    "{prefixRewrite: /moved/}": (301, "http://$host/moved/rest?q=1"),
}


@pytest.mark.smoke
async def test_clients_are_redirected_as_the_rule_says(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    http = "".join(f"- match: [{{uri: {{prefix: /{n}/}}}}]\n  redirect: {r}\n" for n, r in enumerate(REDIRECTS))
    async with shop(tmp_path, port, http, delta=True) as at:
        wrong = []
        for n, (redirect, (status, location)) in enumerate(REDIRECTS.items()):
            reply = await at.ask(f"/{n}/rest?q=1")
            wanted = location.replace("$host", HOST).replace("$port", str(port)).replace("$n", str(n))
            if (reply.status_code, reply.headers.get("location")) != (status, wanted):
                wrong.append((redirect, reply.status_code, reply.headers.get("location"), wanted))
        assert wrong == []


async def test_rules_answer_by_themselves(tmp_path: Path, free_ports: Ports) -> None:
    http = """
    - match: [{uri: {exact: /tea}}]
      directResponse: {status: 418, body: {string: "short and stout"}}
      headers: {response: {set: {content-type: text/tea}}}
    - match: [{uri: {exact: /bytes}}]
      directResponse: {status: 503, body: {bytes: "AAEC"}}
    - match: [{uri: {exact: /empty}}]
      directResponse: {status: 204}
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http) as at:
        tea = await at.ask("/tea")
        assert (tea.status_code, tea.text, tea.headers["content-type"]) == (418, "short and stout", "text/tea")
        assert ((await at.ask("/bytes")).status_code, (await at.ask("/bytes")).content) == (503, b"\x00\x01\x02")
        assert ((await at.ask("/empty")).status_code, (await at.ask("/empty")).content) == (204, b"")
        assert (await at.ask("/nothing")).status_code == 404, "no rule is for it"


REWRITES = {
    "match: [{uri: {prefix: /0/}}], rewrite: {uri: /}": ("/0/a?b=c", "/a?b=c", HOST),
    "match: [{uri: {prefix: /1}}], rewrite: {uri: /long/er}": ("/1/a", "/long/er/a", HOST),
    "match: [{uri: {exact: /2}}], rewrite: {uri: /whole}": ("/2?b=c", "/whole?b=c", HOST),
    "match: [{uri: {regex: '/3/.*'}}], rewrite: {uri: /regex}": ("/3/a/b?c=d", "/regex?c=d", HOST),
    "match: [{uri: {prefix: /4}}], rewrite: {authority: inner.example.com}": ("/4/a", "/4/a", "inner.example.com"),
    "match: [{uri: {prefix: /5}}], rewrite: {uri: /u, authority: inner.example.com}": (
        "/5/a", "/u/a", "inner.example.com"),
    r"match: [{uri: {prefix: /6}}], rewrite: {uriRegexRewrite: {match: '/6/([^/]+)/(.*)', rewrite: '/\2/\1'}}": (
        "/6/one/two?q=1", "/two/one?q=1", HOST),
    "match: [{uri: {prefix: /7}}], headers: {request: {set: {Host: set.example.com}}}": (
        "/7", "/7", "set.example.com"),
}  # fmt: skip
"""A rule: the path asked for, the path and the host that the backend sees."""


async def test_paths_and_hosts_are_rewritten(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    http = "".join(f"- {{{rule}, route: $v1}}\n" for rule in REWRITES)
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1) as at:
        wrong = []
        for rule, (asked, path, host) in REWRITES.items():
            seen = (await at.ask(asked)).json()
            if (seen["path"], seen["headers"]["host"]) != (path, host):
                wrong.append((rule, seen["path"], seen["headers"]["host"]))
        assert wrong == []


async def test_headers_are_set_added_to_and_removed_both_ways(tmp_path: Path, free_ports: Ports) -> None:
    http = """
    - headers:
        request: {set: {x-set: new, x-from: "%REQ(x-kept)%"}, add: {x-add: more}, remove: [x-old]}
        response: {set: {x-set: back}, add: {x-add: more}, remove: [x-secret]}
      route:
      - destination: {host: reviews.example.com, subset: v1}
        headers: {request: {remove: [x-gone]}, response: {set: {x-by: v1}}}
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, delta=True) as at:
        at.v1.answer = lambda request, body: (200, {"x-set": "s", "x-add": "a", "x-secret": "1"})
        reply = await at.ask(headers={"x-set": "s", "x-add": "a", "x-old": "o", "x-gone": "g", "x-kept": "k"})
        seen = reply.json()["headers"]
        assert (seen["x-set"], seen["x-from"]) == ("new", "k")
        assert seen["x-add"] in ("more", "a,more")
        assert not {"x-old", "x-gone"} & seen.keys()
        headers = reply.headers
        assert (headers["x-set"], headers["x-by"]) == ("back", "v1")
        assert headers.get_list("x-add", split_commas=True) == ["a", "more"]
        assert "x-secret" not in headers


async def test_copies_are_sent_to_mirrors(tmp_path: Path, free_ports: Ports) -> None:
    http = """
    - match: [{uri: {exact: /one}}]
      route: $v1
      mirror: {host: reviews.example.com, subset: v2}
    - match: [{uri: {exact: /many}}]
      route: $v1
      mirrors:
      - {destination: {host: reviews.example.com, subset: v2}, percentage: {value: 100}}
      - {destination: {host: reviews.example.com, subset: v1}}
      - {destination: {host: reviews.example.com, subset: v2}, percentage: {value: 0}}
    - match: [{uri: {exact: /never}}]
      route: $v1
      mirror: {host: reviews.example.com, subset: v2}
      mirrorPercentage: {value: 0}
    - match: [{uri: {exact: /half}}]
      route: $v1
      mirror: {host: reviews.example.com, subset: v2}
      mirrorPercentage: {value: 50}
    """
    (port,) = free_ports(1)
    async with shop(tmp_path, port, http, delta=True, v1=TO_V1) as at:
        assert await at.name("/one") == "v1"
        await eventually(lambda: at.v2.asked("/one") == 1, what="the mirror is asked")
        assert at.v2.seen[-1]["headers"]["host"] == HOST
        assert await at.name("/many") == "v1"
        await eventually(lambda: (at.v2.asked("/many"), at.v1.asked("/many")) == (1, 2), what="both mirrors are asked")
        assert await at.name("/never") == "v1"
        for _ in range(60):
            assert await at.name("/half") == "v1"
        # What is asked for last is mirrored last: then everything before it has been.
        await at.name("/one")
        await eventually(lambda: at.v2.asked("/one") == 2)
        assert at.v2.asked("/never") == 0
        assert 5 < at.v2.asked("/half") < 55


async def test_a_destination_without_a_port_is_reached_at_the_only_port_of_its_service(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, other = free_ports(2)
    async with fleet(tmp_path) as mesh:
        web, admin = await mesh.backend("web"), await mesh.backend("admin")
        rules = """
        - match: [{uri: {prefix: /adm}}]
          route: [{destination: {host: adm.test}}]
        - match: [{uri: {prefix: /both}}]
          route: [{destination: {host: a.test}}]
          mirror: {host: adm.test}
        - route: [{destination: {host: a.test}}]
        """
        services = service("a.test", port, at(web)) + service("adm.test", other, at(admin))
        await mesh.apply(services + routes("a.test", rules))
        await mesh.envoy(CLIENT)
        url = f"http://127.0.0.1:{port}"
        found = {path: set(await mesh.names(url + path, host="a.test", count=2)) for path in ("/", "/adm", "/both")}
        assert found == {"/": {"web"}, "/adm": {"admin"}, "/both": {"web"}}
        await eventually(lambda: admin.asked("/both") == 2, what="the mirror is asked")
        await mesh.assert_all_taken()


CORS = """
- match: [{uri: {prefix: /open}}]
  corsPolicy: {allowOrigins: [{regex: ".*"}], allowMethods: [GET]}
  route: $v1
- match: [{uri: {prefix: /closed}}]
  route: $v1
- corsPolicy:
    allowOrigins: [{exact: https://a.com}, {prefix: https://b.}, {regex: "https://.*[.]dev"}]
    allowMethods: [GET, PUT]
    allowHeaders: [x-one, x-two]
    exposeHeaders: [x-shown]
    maxAge: 90s
    allowCredentials: true
    unmatchedPreflights: IGNORE
  route: $v1
"""


async def test_browsers_are_told_what_pages_of_other_origins_may(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with shop(tmp_path, port, CORS, delta=True, v1=TO_V1) as at:

        async def preflight(origin: str, path: str = "/") -> httpx.Headers:
            asked = {"origin": origin, "access-control-request-method": "PUT"}
            reply = await at.ask(path, method="OPTIONS", headers=asked)
            return reply.headers

        allowed = await preflight("https://a.com")
        assert {name: value for name, value in allowed.items() if name.startswith("access-control")} == {
            "access-control-allow-origin": "https://a.com",
            "access-control-allow-methods": "GET,PUT",
            "access-control-allow-headers": "x-one,x-two",
            "access-control-expose-headers": "x-shown",
            "access-control-max-age": "90",
            "access-control-allow-credentials": "true",
        }
        assert at.v1.seen == [], "preflights are answered by the proxy"
        for origin in ("https://b.org", "https://x.dev"):
            assert (await preflight(origin))["access-control-allow-origin"] == origin
        for origin in ("https://c.com", "https://a.com.evil.com", "http://x.dev.evil.com"):
            assert "access-control-allow-origin" not in await preflight(origin), origin
        plain = await at.ask(headers={"origin": "https://a.com"})
        assert plain.headers["access-control-allow-origin"] == "https://a.com"
        assert plain.headers["access-control-allow-credentials"] == "true"
        assert plain.headers["access-control-expose-headers"] == "x-shown"
        other = await at.ask(headers={"origin": "https://c.com"})
        assert other.status_code == 200 and "access-control-allow-origin" not in other.headers
        assert (await preflight("https://any.org", "/open"))["access-control-allow-origin"] == "https://any.org"
        assert "access-control-allow-origin" not in await preflight("https://a.com", "/closed")


async def test_connections_are_upgraded_where_client_and_service_agree(tmp_path: Path, free_ports: Ports) -> None:
    """As WebSockets are: what follows on the connection is theirs."""
    (port,) = free_ports(1)
    paths: list[bytes] = []

    async def upgrading(stream: trio.SocketStream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some()
        paths.append(head.partition(b" HTTP")[0])
        await stream.send_all(b"HTTP/1.1 101 Up\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        async for data in stream:
            await stream.send_all(data.upper())

    async with fleet(tmp_path) as mesh, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, upgrading, [listener])
        sockets = Backend("sockets", "127.0.0.1", listener.socket.getsockname()[1])
        http = (
            "- {match: [{uri: {exact: /outer}}], rewrite: {uri: /inner}, route: [{destination: {host: sockets.test}}]}"
        )
        await mesh.apply(service("sockets.test", port, at(sockets)) + routes("sockets.test", http))
        await mesh.envoy(CLIENT)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            asked = "GET /outer HTTP/1.1\r\nhost: sockets.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
            await stream.send_all(asked.encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await stream.receive_some()
            assert head.startswith(b"HTTP/1.1 101 ")
            await stream.send_all(b"hello")
            assert await stream.receive_some() == b"HELLO"
        assert paths == [b"GET /inner"]
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()


async def test_changes_of_a_rule_are_followed_without_a_failed_request(tmp_path: Path, free_ports: Ports) -> None:
    """Every kind of action comes and goes while requests that it is not for are answered."""
    steps = [
        "- {match: [{uri: {exact: /x}}], directResponse: {status: 418}}",
        "- {match: [{uri: {exact: /x}}], redirect: {uri: /y}}",
        "- {match: [{uri: {exact: /x}}], fault: {abort: {httpStatus: 499, percentage: {value: 100}}}, route: $v1}",
        "- {match: [{uri: {exact: /x}}], route: $v2}",
    ]
    wanted = ["418", "301", "499", "v2"]
    (port,) = free_ports(1)
    async with shop(tmp_path, port) as at, at.mesh.load(f"{at.url}/", host=HOST) as load:
        for step, status in zip(steps, wanted, strict=True):
            await at.mesh.apply(routes(HOST, f"{step}\n- {{route: $v1}}", v1=TO_V1, v2=TO_V2), "step.yaml")

            async def seen(status: str = status) -> bool:
                return await at.name("/x") == status

            await eventually(seen, what=f"{step} is seen")
    assert load.failures == []
