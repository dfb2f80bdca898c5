"""Who may do what, asked of real Envoys: AuthorizationPolicies on requests and connections, at gateways too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.guarded import HOST, allow, deny, guarded, policy
from tests.support.manifests import at, service
from tests.support.shop import EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

WEB = "cluster.local/ns/shop/sa/web"


async def test_who_calls_is_known_by_its_certificate(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4), delta=True) as guard:
        assert (await guard.ask(), await guard.ask(plain=True)) == (200, 200)
        may = [
            f'{{principals: ["{WEB}"]}}',
            '{principals: ["cluster.local/ns/shop/*"]}',
            '{principals: ["*/sa/web"]}',
            '{principals: ["*"]}',
            "{namespaces: [shop]}",
            '{namespaces: ["sh*"]}',
            "{serviceAccounts: [web]}",
            "{serviceAccounts: [shop/web]}",
            '{trustDomains: ["cluster*"]}',
        ]
        for source in may:
            await guard.apply(allow("callers", f"[{{from: [{{source: {source}}}]}}]"))
            assert (await guard.ask(), await guard.ask(plain=True)) == (200, 403), source
        may_not = [
            '{principals: ["cluster.local/ns/shop/sa/we"]}',
            "{namespaces: [sho, hop, other]}",
            "{serviceAccounts: [other/web, we]}",
            "{trustDomains: [cluster.loca]}",
            '{principals: ["*"], notNamespaces: [shop]}',
        ]
        for source in may_not:
            await guard.apply(allow("callers", f"[{{from: [{{source: {source}}}]}}]"))
            assert (await guard.ask(), await guard.ask(plain=True)) == (403, 403), source


async def test_a_policy_without_rules_allows_nothing_and_an_empty_rule_everything(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with guarded(tmp_path, free_ports(4), allow("nothing", "[]")) as guard:
        assert (await guard.ask(), await guard.connect()) == (403, "")
        await guard.apply(allow("nothing", "[]"), allow("all", "[{}]"))
        assert (await guard.ask(), await guard.connect()) == (200, "data")
        await guard.apply(allow("mesh", "[]", namespace="istio-system"))
        assert (await guard.ask(), await guard.connect(plain=True)) == (403, "")
        await guard.apply(allow("elsewhere", "[]", namespace="other"))
        assert (await guard.ask(), await guard.connect()) == (200, "data")


OPERATIONS = """
- to:
  - operation: {methods: [DELETE, "P*"]}
  - operation: {paths: [/exact, /prefix*, "*/suffix", "/{*}/one/{**}"]}
  - operation: {hosts: ["no.example.com", "*.no"]}
  - operation: {paths: ["/not/*"], notPaths: [/not/this], notMethods: [OPTIONS]}
- when:
  - {key: "request.headers[x-team]", values: [red, "blue*", "*green"]}
  - {key: "request.headers[x-excuse]", notValues: ["*"]}
- when: [{key: source.ip, values: [10.9.0.0/16]}]
"""


@pytest.mark.smoke
async def test_what_is_asked_for_decides(tmp_path: Path, free_ports: Ports) -> None:
    """A DENY policy, next to an ALLOW policy for everybody: what is denied is not allowed after all."""
    async with guarded(tmp_path, free_ports(4), deny("operations", OPERATIONS), allow("all", "[{}]")) as guard:
        refused = ["/exact", "/exact?query", "/prefix", "/prefix/x", "/x/suffix", "/a/one/", "/a/one/b/c", "/not/that"]
        for path in refused:
            assert await guard.ask(path) == 403, path
        for path in ("/", "/exactly", "/pref", "/suffix/x", "/a/b/one/c", "/a[b]/one/c", "/one/c", "/not/this", "/not"):
            assert await guard.ask(path) == 200, path
        assert {m: await guard.ask(method=m) for m in ("GET", "DELETE", "POST", "PUT", "OPTIONS")} == {
            "GET": 200, "DELETE": 403, "POST": 403, "PUT": 403, "OPTIONS": 200,
        }  # fmt: skip
        assert await guard.ask("/not/that", method="OPTIONS") == 200
        for host, status in (("no.example.com", 403), ("NO.example.com", 403), ("so.no", 403), (HOST, 200)):
            assert await guard.ask(plain=True, host=host) == status, host
        teams = {"red": 403, "blue": 403, "blues": 403, "evergreen": 403, "yellow": 200, "RED": 200}
        assert {team: await guard.ask(headers={"x-team": team}) for team in teams} == teams
        assert await guard.ask(headers={"x-team": "red", "x-excuse": "ill"}) == 200


async def test_a_connection_is_judged_by_what_is_known_of_it(tmp_path: Path, free_ports: Ports) -> None:
    """On TCP an ALLOW rule that asks for a path allows nothing, and a DENY rule that does denies without it."""
    ports = free_ports(4)
    *_, own_tcp = ports
    async with guarded(tmp_path, ports) as guard:
        assert (await guard.connect(), await guard.connect(plain=True)) == ("data", "data")
        await guard.apply(allow("web", f'[{{from: [{{source: {{principals: ["{WEB}"]}}}}]}}]'))
        assert (await guard.connect(), await guard.connect(plain=True)) == ("data", "")
        await guard.apply(allow("path", "[{to: [{operation: {paths: [/x]}}]}]"))
        assert (await guard.connect(), await guard.ask("/x"), await guard.ask("/y")) == ("", 200, 403)
        rule = f'[{{to: [{{operation: {{methods: [POST], ports: ["{own_tcp}"]}}}}]}}]'
        await guard.apply(deny("port", rule))
        assert (await guard.connect(), await guard.ask(method="POST")) == ("", 200)
        await guard.apply(deny("address", "[{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]"))
        assert await guard.connect() == "data"
        await guard.apply(deny("address", "[{when: [{key: source.ip, values: [127.0.0.0/8]}]}]"))
        assert (await guard.connect(), await guard.ask()) == ("", 403)


async def test_a_policy_in_dry_run_counts_and_refuses_nobody(tmp_path: Path, free_ports: Ports) -> None:
    tried = deny("tried", "[{to: [{operation: {paths: [/x]}}]}]", dry_run=True)
    async with guarded(tmp_path, free_ports(4), tried) as guard:
        assert (await guard.ask("/x"), await guard.ask("/y")) == (200, 200)
        assert await guard.envoy.counted(r"rbac.*istio_dry_run_deny_.*shadow_denied$") == 1
        assert await guard.envoy.counted(r"^http.*rbac.denied$") == 0
        await guard.apply(allow("tried", "[{to: [{operation: {paths: [/x]}}]}]", dry_run=True))
        assert (await guard.ask("/x"), await guard.ask("/y")) == (200, 200)
        assert await guard.envoy.counted(r"rbac.*istio_dry_run_allow_.*shadow_denied$") == 1


async def test_an_audit_policy_refuses_nobody(tmp_path: Path, free_ports: Ports) -> None:
    audit = policy("AuthorizationPolicy", "audit", "action: AUDIT\nrules: [{to: [{operation: {paths: [/x]}}]}]")
    async with guarded(tmp_path, free_ports(4), audit, deny("x", "[{to: [{operation: {paths: [/z]}}]}]")) as guard:
        assert [await guard.ask(path) for path in ("/x", "/y", "/z")] == [200, 200, 403]


async def test_a_gateway_has_policies_too(tmp_path: Path, free_ports: Ports) -> None:
    port, tcp = free_ports(2)
    servers = """
    - port: {number: $port, name: http, protocol: HTTP}
      hosts: [shop.test]
    - port: {number: $tcp, name: tcp, protocol: TCP}
      hosts: ["*"]
    """
    only = """
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: edge, namespace: shop}
spec:
  selector: {matchLabels: {istio: edge}}
  action: DENY
  rules:
  - to: [{operation: {paths: ["/admin*"]}}]
  - when: [{key: remote.ip, values: [203.0.113.0/24]}]
---
"""
    trust = "defaultConfig: {gatewayTopology: {numTrustedProxies: 1}}"
    async with fleet(tmp_path, mesh=trust) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(
            only + service("app.test", 80, at(app)) + gateway("edge", servers, port=port, tcp=tcp)
            + to("shop.test", "app.test", "edge")
        )  # fmt: skip
        await mesh.envoy(EDGE)
        await mesh.until_answered_by({"app"}, f"http://127.0.0.1:{port}/", host="shop.test")

        async def ask(path: str, client: str) -> int:
            headers = {"x-forwarded-for": client}
            url = f"http://127.0.0.1:{port}{path}"
            return (await mesh.get(url, host="shop.test", headers=headers)).status_code

        assert await ask("/", "198.51.100.1") == 200
        assert await ask("/admin", "198.51.100.1") == 403
        assert await ask("/", "203.0.113.7") == 403
        await mesh.assert_all_taken()


async def test_a_policy_that_is_refused_leaves_the_last_good_one_in_force(tmp_path: Path, free_ports: Ports) -> None:
    shut = deny("shut", "[{to: [{operation: {paths: [/x]}}]}]")
    async with guarded(tmp_path, free_ports(4), shut) as guard:
        guard.mesh.write(guard.services + shut.replace("paths", "pahts"))
        await eventually(lambda: len(guard.mesh.plane.state.world.rejections()) == 1)
        assert await guard.ask("/x") == 403
        guard.mesh.write(guard.services)

        async def open_again() -> bool:
            return await guard.ask("/x") == 200

        await eventually(open_again)
