"""The config store by the API of a whole control plane: changes, what is expected, refusals, roles, the log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import yaml

from mesh_pilot.app.settings import StartError
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.app import BASE
from mesh_pilot.sources.config_store.base import Stored
from mesh_pilot.sources.config_store.folder import ConfigFolder
from tests.support.config_stores import route
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

OPERATOR, VIEWER = "a-token-of-the-operator", "a-token-of-the-viewer"
PATH = "/config/VirtualService/shop/reviews"
FILE = "shop/VirtualService.reviews.yaml"
RULE = (
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: r}\n"
)


class Store:
    """A control plane with a folder that can be written, and a client of its API."""

    def __init__(self, plane: Any, client: httpx.AsyncClient, folder: Path) -> None:
        self.plane = plane
        self.client = client
        self.folder = folder
        self.last: httpx.Response | None = None

    async def ask(
        self,
        method: str,
        path: str = PATH,
        body: Any = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        token: str = OPERATOR,
        **query: Any,
    ) -> Any:
        content = body if isinstance(body, (str, bytes)) else None if body is None else json.dumps(body)
        self.last = await self.client.request(
            method,
            f"http://{self.plane.addresses.http}{BASE}{path}",
            params=query or None,
            content=content,
            headers={"authorization": f"Bearer {token}", **(headers or {})},
        )
        assert self.last.status_code == status, self.last.text
        return self.last.json()

    def content(self) -> dict[str, str]:
        return {
            str(file.relative_to(self.folder)): file.read_text()
            for file in self.folder.rglob("*.yaml")
            if file.is_file()
        }

    def in_force(self) -> Any:
        return self.plane.state.world.config.peek(ConfigKey("VirtualService", "shop", "reviews"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    config, other = tmp_path / "config", tmp_path / "other"
    config.mkdir()
    other.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operate {OPERATOR} alice\nview {VIEWER} bob\n")
    access = AccessSettings(token_file=tokens)
    async with (
        running_plane(config, other, config_store=str(config), access=access, debounce_after=0.01) as plane,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):
        yield Store(plane, client, config)


async def test_an_object_is_created_changed_and_deleted_with_its_versions(store: Store) -> None:
    created = await store.ask("PUT", body=yaml.safe_dump(route("1s")), wait=10)
    assert (created["action"], created["object"], created["version_before"]) == (
        "created",
        "VirtualService/shop/reviews",
        "",
    )
    assert created["delivery"]["complete"] is True
    assert store.in_force().spec.http[0].timeout.total_seconds() == 1

    found = await store.ask("GET", token=VIEWER)
    assert found["object"]["spec"] == route("1s")["spec"]
    assert found["object"]["metadata"]["resourceVersion"] == found["version"] == created["version"]
    assert found["in_store"] is True and found["in_force"].endswith(f"{FILE}:1")
    assert store.last is not None and store.last.headers["etag"] == f'"{created["version"]}"'

    again = await store.ask("PUT", body=found["object"])
    assert (again["action"], again["version"]) == ("unchanged", created["version"])
    changed = await store.ask("PUT", body=route("2s"), wait=10)
    assert (changed["action"], changed["version_before"]) == ("configured", created["version"])
    assert "resourceVersion" not in store.content()[FILE]

    deleted = await store.ask("DELETE", wait=10)
    assert (deleted["action"], deleted["version"], deleted["version_before"]) == ("deleted", "", changed["version"])
    assert store.in_force() is None
    assert list(store.content()) == ["a.yaml"]
    await store.ask("GET", status=404)
    await store.ask("DELETE", status=404)


async def test_who_expects_another_version_is_told_the_one_that_is_there(store: Store) -> None:
    old = (await store.ask("PUT", body=route("1s")))["version"]
    new = (await store.ask("PUT", body=route("2s")))["version"]
    for way in (
        {"headers": {"if-match": f'"{old}"'}},
        {"version": old},
        {"body": route("3s", resourceVersion=old)},
        {"headers": {"if-none-match": "*"}},
    ):
        refused = await store.ask("PUT", status=412, **{"body": route("3s"), **way})
        assert refused["version"] == new, way
    refused = await store.ask("DELETE", status=412, version=old)
    assert f"it is at version {new}, not {old}; read it again" in refused["error"]
    assert yaml.safe_load(store.content()[FILE]) == route("2s")

    await store.ask("PUT", body=route("3s"), headers={"if-match": f'"{new}"'})
    await store.ask("PUT", body=route("4s", resourceVersion=old), force="true")
    await store.ask("PUT", body=route("5s"), headers={"if-match": "*"})
    await store.ask("PUT", body=route("5s", resourceVersion=old), status=400, version=new)
    await store.ask("PUT", body=route("5s"), status=400, headers={"if-none-match": '"x"'})
    await store.ask("DELETE")
    await store.ask("PUT", body=route("6s"), status=412, headers={"if-match": "*"})
    await store.ask("PUT", body=route("6s"), headers={"if-none-match": "*"})


async def test_a_wrong_object_is_refused_with_all_its_problems_and_warnings_are_told(store: Store) -> None:
    wrong = route()
    wrong["spec"]["http"][0] |= {"timeout": "soon", "retrys": {}}
    refused = await store.ask("PUT", body=wrong, status=422)
    assert {each["path"] for each in refused["problems"]} >= {"spec.http[0].timeout", "spec.http[0].retrys"}
    assert refused["error"].startswith("VirtualService/shop/reviews is refused: ")
    for body, status, reason in (
        ("kind: [", 400, "not valid YAML"),
        ("", 400, "one object"),
        (f"{RULE}---\n{RULE}", 400, "it has 2"),
        (RULE, 400, "the body is DestinationRule/shop/r"),
        (route(name="other"), 400, "the body is VirtualService/shop/other"),
        (b"\xff\xfe\x00", 400, "not UTF-8"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reviews"}}, 422, "not an Istio kind"),
        (
            {"apiVersion": "networking.istio.io/v9", "kind": "VirtualService", "metadata": {"name": "reviews"}},
            422,
            "v9",
        ),
    ):
        assert reason in (await store.ask("PUT", body=body, status=status))["error"], body
    assert list(store.content()) == ["a.yaml"]

    warned = route()
    warned["spec"]["http"][0]["mirror_percent"] = 5
    answer = await store.ask("PUT", body=warned)
    assert answer["warnings"] and answer["warnings"][0]["severity"] == "warning"


async def test_a_wrong_request_changes_nothing(store: Store) -> None:
    for path, query, status in (
        ("/config/Unheard/shop/x", {}, 404),
        ("/config/VirtualService/-/x", {}, 400),
        ("/config/GatewayClass/shop/x", {}, 400),
        (PATH, {"wait": "soon"}, 400),
        (PATH, {"wait": "601"}, 400),
        (PATH, {"wait": "nan"}, 400),
        (PATH, {"dryRun": "yes"}, 400),
        (PATH, {"worker": "1"}, 400),
        (PATH, {"dryrun": "true"}, 400),
        ("/config/VirtualService/..%2F..%2Fetc/x", {}, 404),
        ("/config/VirtualService/shop/%2e%2e%2f%2e%2e%2fx", {}, 404),
        ("/config/VirtualService/%2e/x", {}, 422),
        ("/config/VirtualService/shop/.x", {}, 422),
        ("/config/VirtualService/shop/UPPER", {}, 422),
        (f"/config/VirtualService/shop/{'x' * 300}", {}, 422),
        (f"/config/VirtualService/shop/{'x' * 250}", {}, 409),
    ):
        reply = await store.client.put(
            f"http://{store.plane.addresses.http}{BASE}{path}",
            params=query,
            content=json.dumps({**route(), "metadata": {}}),
            headers={"authorization": f"Bearer {OPERATOR}"},
        )
        assert reply.status_code == status, (path, query, reply.text)
    assert [*store.folder.rglob("*")] == [store.folder / "a.yaml"], "nothing was written, not even a lock"


async def test_short_names_and_objects_without_a_namespace(store: Store) -> None:
    await store.ask("PUT", "/config/vs/shop/reviews", body=route())
    assert (await store.ask("GET", "/config/virtualservices/shop/reviews"))["in_store"] is True
    document = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "mine"}}
    document["spec"] = {"controllerName": "istio.io/gateway-controller"}
    answer = await store.ask("PUT", "/config/gc/-/mine", body=document, wait=10)
    assert (answer["object"], answer["delivery"]["complete"]) == ("GatewayClass//mine", True)
    assert (await store.ask("GET", "/config/GatewayClass/-/mine"))["object"]["metadata"]["name"] == "mine"
    await store.ask("DELETE", "/config/gatewayclasses.gateway.networking.k8s.io/-/mine")


async def test_an_object_that_is_elsewhere_is_changed_there(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other" / "reviews.yaml").write_text(yaml.safe_dump(route("1s")))
    await eventually(lambda: store.in_force() is not None)
    found = await store.ask("GET")
    assert (found["in_store"], found["version"], found["object"]["spec"]) == (False, "", route("1s")["spec"])
    refused = await store.ask("PUT", body=route("2s"), status=409)
    assert "reviews.yaml" in refused["error"] and "change it there" in refused["error"]
    await store.ask("DELETE", status=409)
    assert list(store.content()) == ["a.yaml"]

    (store.folder / "both.yaml").write_text(f"{RULE}---\n{yaml.safe_dump(route('5s', name='shared'))}")
    await eventually(lambda: store.plane.state.world.statistics().configs.get("DestinationRule") == 1)
    refused = await store.ask("PUT", "/config/vs/shop/shared", body=route("6s", name="shared"), status=409)
    assert "both.yaml:" in refused["error"] and "move it to a separate file" in refused["error"]

    assert (await store.ask("GET", "/config/se/shop/reviews"))["in_store"] is True
    changed = SERVICE.replace("9080", "9081")
    answer = await store.ask("PUT", "/config/se/shop/reviews", body=changed)
    assert (answer["action"], answer["where"]) == ("configured", str(store.folder / "a.yaml"))


async def test_a_dry_run_says_what_would_be_and_changes_nothing(store: Store) -> None:
    before = store.content()
    answer = await store.ask("PUT", body=route(), dryRun="true", wait=5)
    assert (answer["action"], answer["dry_run"], "delivery" in answer) == ("created", True, False)
    await store.ask("PUT", body={**route(), "spec": {"hosts": []}}, dryRun="true", status=422)
    gone = await store.ask("DELETE", "/config/se/shop/reviews", dryRun="true")
    assert gone["action"] == "deleted"
    assert store.content() == before
    assert {file.name for file in store.folder.iterdir()} == {"a.yaml"}
    await store.ask("PUT", body=route())
    assert (await store.ask("PUT", body=route("9s"), dryRun="true"))["action"] == "configured"
    await store.ask("PUT", body=route("9s", resourceVersion="old"), dryRun="true", status=412)
    assert yaml.safe_load(store.content()[FILE]) == route()


async def test_who_may_only_view_changes_nothing_and_each_change_and_refusal_is_in_the_log(store: Store) -> None:
    with structlog.testing.capture_logs() as logs:
        await store.ask("PUT", body=route(), token=VIEWER, status=403)
        await store.ask("DELETE", "/config/se/shop/reviews", token=VIEWER, status=403)
        created = await store.ask("PUT", body=route("1s"))
        await store.ask("PUT", body=route("2s"), version="old", status=412)
        await store.ask("PUT", body={**route(), "spec": {"hosts": []}}, status=422)
        await store.ask("PUT", body=route("1s"))
        await store.ask("PUT", body=route("3s"), dryRun="true")
        await store.ask("DELETE")
    assert list(store.content()) == ["a.yaml"]
    changed = [entry for entry in logs if entry["event"] == "config changed"]
    shown = ("user", "by", "action", "object", "version_before", "version")
    assert [tuple(entry[name] for name in shown) for entry in changed] == [
        ("alice", "token", "created", "VirtualService/shop/reviews", "", created["version"]),
        ("alice", "token", "deleted", "VirtualService/shop/reviews", created["version"], ""),
    ]
    refused = [entry for entry in logs if entry["event"] == "config change refused"]
    assert [(entry["user"], entry["action"], entry["status"]) for entry in refused] == [
        ("alice", "PUT", 412),
        ("alice", "PUT", 422),
    ]


async def test_a_disk_that_takes_nothing_is_503_and_the_log_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mesh_pilot.sources.config_store.folder.os.fsync", fail)
        refused = await store.ask("PUT", body=route(), status=503)
    assert "No space left on device; nothing has changed" in refused["error"]
    assert list(store.content()) == ["a.yaml"]


async def test_a_large_object_is_taken_and_a_larger_one_is_not(store: Store) -> None:
    await store.ask("PUT", body=route(annotations={"note": "x" * 300_000}))
    reply = await store.client.put(
        f"http://{store.plane.addresses.http}{BASE}{PATH}",
        content=json.dumps(route(annotations={"note": "x" * 1_100_000})),
        headers={"authorization": f"Bearer {OPERATOR}"},
    )
    assert reply.status_code == 413


async def test_the_wait_ends_and_says_why_the_object_is_not_in_force(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Stored(route(), "version", "nowhere")
    monkeypatch.setattr(ConfigFolder, "_write", lambda *_: lost)
    answer = await store.ask("PUT", body=route(), wait=0.3)
    assert (answer["action"], answer["delivery"]["complete"], answer["delivery"]["revision"]) == (
        "created",
        False,
        None,
    )
    assert "has not read it yet" in answer["delivery"]["reason"]


async def test_without_a_store_objects_can_be_read_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operate {OPERATOR} alice\n")
    async with (
        running_plane(tmp_path, access=AccessSettings(token_file=tokens)) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        store = Store(plane, client, tmp_path)
        found = await store.ask("GET", "/config/se/shop/reviews")
        assert (found["in_store"], found["store"], found["object"]["kind"]) == (False, "", "ServiceEntry")
        refused = await store.ask("PUT", body=route(), status=409)
        assert "start mesh-pilot discovery with --config-store" in refused["error"]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("elsewhere", "must be one of the folders of --config-dir"),
        ("consul://mesh/config", "no Consul is read"),
        ("kubernetes", "no Kubernetes is read"),
        ("s3://bucket", "must be a folder, consul://PREFIX or kubernetes"),
    ],
)
async def test_a_store_that_no_source_reads_is_an_error_at_the_start(tmp_path: Path, named: str, reason: str) -> None:
    with pytest.raises(StartError, match=reason):
        async with running_plane(tmp_path, config_store=named):
            raise AssertionError("it has started")


async def test_the_prefix_in_consul_must_be_the_one_that_is_read(tmp_path: Path) -> None:
    registry = ConsulRegistry((ConsulSettings(agent=Agent("http://127.0.0.1:1"), config_prefix="mesh/config"),))
    with pytest.raises(
        StartError, match=r"must be the prefix of --consul-config-prefix, which is read \(mesh/config\)"
    ):
        async with running_plane(tmp_path, config_store="consul://other", registries=(registry,)):
            raise AssertionError("it has started")
