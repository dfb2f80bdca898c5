"""The security kinds of Istio 1.1, asked of real Envoys: mTLS modes, tokens and roles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.guarded import DATA, HOST, Guarded, allow, guarded, policy
from tests.support.legacy import access, binding, mesh_policy, role
from tests.support.legacy import policy as legacy_policy
from tests.support.tokens import Issuer

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

LOGIN, ROBOTS = Issuer("https://login.example.com/realms/shop"), Issuer("robots@example.com")
WEB = "cluster.local/ns/shop/sa/web"
STRICT = "peers: [{mtls: {}}]"
EVERYTHING = "[{services: ['*']}]"


def front(spec: str, name: str = "front", ports: str = "") -> str:
    return legacy_policy(name, f"targets: [{{name: {HOST}{ports}}}], {spec}")


def origins(*issuers: Issuer, **more: object) -> str:
    """Tokens next to either kind of connection."""
    return "peers: [{mtls: {mode: PERMISSIVE}}], origins: " + json.dumps(
        [{"jwt": {"issuer": i.name, "jwks": i.jwks, **more}} for i in issuers]
    )


async def ask(guard: Guarded, token: str = "", path: str = "/") -> int:
    return await guard.ask(path, plain=True, headers={"authorization": f"Bearer {token}"} if token else None)


async def test_a_strict_policy_and_a_binding_let_in_one_principal_and_nobody_else(
    tmp_path: Path, free_ports: Ports
) -> None:
    start = front(STRICT) + access("ON") + role("reader", f"[{{services: [{HOST}], methods: [GET]}}]")
    async with guarded(tmp_path, free_ports(4), start, binding("reader", f"[{{user: {WEB}}}]")) as guard:
        assert (await guard.ask(), await guard.ask(method="POST")) == (200, 403)
        assert await guard.connect() == "", "no role is about the other service"
        await guard.apply(start, binding("reader", "[{user: cluster.local/ns/shop/sa/other}]"))
        assert await guard.ask() == 403
        await guard.apply(start, binding("reader", "[{properties: {source.namespace: shop}}]"))
        assert await guard.ask() == 200
        await guard.apply(start, binding("reader", "[{user: '*'}]", role="gone"))
        assert await guard.ask() == 403


async def test_a_policy_says_which_connections_a_service_accepts(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4)) as guard:
        assert (await guard.connect(), await guard.connect(plain=True)) == ("data", "data")
        data = f"targets: [{{name: {DATA}}}]"
        await guard.apply(legacy_policy("data", f"{data}, {STRICT}"))
        assert (await guard.connect(), await guard.connect(plain=True)) == ("data", "")
        assert await guard.ask(plain=True) == 200, "of the other service"
        await guard.apply(
            mesh_policy(STRICT), legacy_policy("data", f"{data}, peers: [{{mtls: {{mode: PERMISSIVE}}}}]")
        )
        assert (await guard.connect(), await guard.connect(plain=True)) == ("data", "data")


async def test_roles_are_enforced_where_the_mode_says_and_beside_authorization_policies(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with guarded(tmp_path, free_ports(4), access("ON")) as guard:
        assert (await guard.ask(), await guard.connect()) == (403, "")
        await guard.apply(access("ON_WITH_INCLUSION", f"inclusion: {{services: [{HOST}]}}"))
        assert (await guard.ask(), await guard.connect()) == (403, "data")
        await guard.apply(access("ON_WITH_EXCLUSION", f"exclusion: {{services: [{HOST}]}}"))
        assert (await guard.ask(), await guard.connect()) == (200, "")
        await guard.apply(access("OFF"))
        assert (await guard.ask(), await guard.connect()) == (200, "data")
        await guard.apply(access("ON"), allow("all", "[{}]"))
        assert (await guard.ask(), await guard.connect()) == (403, "")
        granted = access("ON") + role("all", EVERYTHING) + binding("all", "[{user: '*'}]")
        await guard.apply(granted)
        assert (await guard.ask(), await guard.ask(plain=True), await guard.connect(plain=True)) == (200, 200, "data")
        await guard.apply(granted, allow("nothing", "[]"))
        assert (await guard.ask(), await guard.connect()) == (403, "")
        known = access("ON") + role("all", EVERYTHING) + binding("all", "[{properties: {source.principal: '*'}}]")
        await guard.apply(known)
        assert (await guard.ask(), await guard.ask(plain=True), await guard.connect(plain=True)) == (200, 403, "")


async def test_a_role_says_what_may_be_done(tmp_path: Path, free_ports: Ports) -> None:
    rules = """[
      {services: ['*'], paths: [/exact, '/prefix*', '*.html'], methods: [GET]},
      {services: ['*'], notPaths: ['/private*'], methods: [PUT],
       constraints: [{key: 'request.headers[x]', values: [a, b]}]},
      {services: ['*'], methods: ['*'], constraints: [{key: 'destination.labels[app]', values: [back]}]},
    ]"""
    text = access("ON") + role("some", rules) + binding("some", "[{user: '*'}]")
    async with guarded(tmp_path, free_ports(4), text) as guard:
        for path, status in {"/exact": 200, "/exactly": 403, "/prefix/x": 200, "/x.html": 200, "/": 403}.items():
            assert await guard.ask(path) == status, path
        for path, value, status in (("/", "a", 200), ("/", "c", 403), ("/private/x", "a", 403), ("/x", "b", 200)):
            assert await guard.ask(path, method="PUT", headers={"x": value}) == status, (path, value)
        await guard.apply(text.replace("[back]", "[front]"))
        assert await guard.ask("/") == 200
        assert await guard.connect() == "", "what asks for a method is for requests"


async def test_a_dry_run_of_roles_counts_and_refuses_nobody(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4), access("ON", "enforcementMode: PERMISSIVE")) as guard:
        before = await guard.envoy.counted(r"rbac.*istio_dry_run_allow_.*shadow_denied$")
        assert (await guard.ask(), await guard.connect()) == (200, "data")
        assert await guard.envoy.counted(r"rbac.*istio_dry_run_allow_.*shadow_denied$") > before
        roles = role("all", EVERYTHING) + binding("all", "[{user: '*'}]", more="mode: PERMISSIVE")
        await guard.apply(access("ON"), roles)
        assert await guard.ask() == 403


async def test_a_policy_requires_a_token(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4), front(origins(LOGIN, audiences=["shop"]))) as guard:
        good, other, bad = LOGIN.token(aud="shop"), LOGIN.token(aud="x"), Issuer(LOGIN.name).token(aud="shop")
        assert [await ask(guard, token) for token in ("", good, other, bad)] == [401, 200, 403, 401]
        assert await guard.connect(plain=True) == "data", "of the other service"
        await guard.apply(front(origins(LOGIN, ROBOTS)))
        assert [await ask(guard, token) for token in ("", good, ROBOTS.token(), bad)] == [401, 200, 200, 401]
        await guard.apply(front(origins(LOGIN) + ", originIsOptional: true"))
        assert [await ask(guard, token) for token in ("", good, bad)] == [200, 200, 200]
        new = policy(
            "RequestAuthentication", "new", f"jwtRules: [{json.dumps({'issuer': ROBOTS.name, 'jwks': ROBOTS.jwks})}]"
        )
        await guard.apply(front(origins(LOGIN)), new)
        assert [await ask(guard, token) for token in ("", good, ROBOTS.token(), bad)] == [401, 200, 401, 401]
        await guard.apply(front(origins(LOGIN) + ", originIsOptional: true"), new)
        assert [await ask(guard, token) for token in ("", good, ROBOTS.token(), bad)] == [200, 200, 200, 401]


async def test_tokens_are_asked_for_on_the_paths_of_trigger_rules(tmp_path: Path, free_ports: Ports) -> None:
    excluded = [{"excludedPaths": [{"exact": "/health"}, {"suffix": ".css"}, {"regex": "/v[0-9]+/open"}]}]
    async with guarded(tmp_path, free_ports(4), front(origins(LOGIN, triggerRules=excluded))) as guard:
        free = ("/health", "/health?x=y", "/a/b.css", "/v12/open")
        assert [await ask(guard, path=path) for path in free] == [200] * 4
        assert [await ask(guard, path=path) for path in ("/", "/healthy", "/v/open", "/v1/open/x")] == [401] * 4
        both = [{"includedPaths": [{"prefix": "/admin"}], "excludedPaths": [{"prefix": "/admin/open"}]}]
        await guard.apply(front(origins(LOGIN, triggerRules=both)))
        assert [await ask(guard, path=path) for path in ("/", "/admin/open/x", "/admin")] == [200, 200, 401]
        assert await ask(guard, "no token", path="/") == 200, "nobody looks at it"
        several = [{"excludedPaths": [{"prefix": "/a"}]}, {"excludedPaths": [{"prefix": "/b"}]}]
        await guard.apply(front(origins(LOGIN, triggerRules=several)))
        assert [await ask(guard, path=path) for path in ("/", "/a", "/b")] == [401] * 3


async def test_roles_read_what_tokens_say_as_the_policy_binds(tmp_path: Path, free_ports: Ports) -> None:
    alice = LOGIN.token("alice", groups=["buyers"])
    roles = access("ON_WITH_INCLUSION", f"inclusion: {{services: [{HOST}]}}") + role("all", EVERYTHING)
    bound = front(origins(LOGIN) + ", principalBinding: USE_ORIGIN")
    subject = f"[{{properties: {{request.auth.principal: '{LOGIN.name}/alice'}}}}]"
    async with guarded(tmp_path, free_ports(4), bound, roles, binding("all", "[{group: buyers}]")) as guard:
        assert [await ask(guard, token) for token in (alice, LOGIN.token("bob"))] == [200, 403]
        await guard.apply(bound, roles, binding("all", subject))
        assert [await ask(guard, token) for token in (alice, LOGIN.token("bob"))] == [200, 403]
        await guard.apply(front(origins(LOGIN)), roles, binding("all", subject))
        assert await ask(guard, alice) == 403, "the principal is the peer"
