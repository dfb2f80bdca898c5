"""``mesh-pilot plan``: between folders, and against a live plane with a real Envoy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from click.testing import CliRunner

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.cli import main
from tests.support.certificates import write_certificates
from tests.support.credentials import write_credential
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.planes import SERVICE as EXTERNAL
from tests.support.planes import running_plane

SERVICE = EXTERNAL.replace("resolution", "location: MESH_INTERNAL\n  resolution")
RATINGS = SERVICE.replace("reviews", "ratings").replace("10.0.0.1", "10.0.0.2")
EDGE = """\
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
"""
ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.test]
  http:
  - name: main
    timeout: 1s
    route: [{destination: {host: reviews.test}}]
"""
BROKEN = ROUTE.replace("timeout: 1s", "timeout: soon").replace("name: reviews", "name: broken")
CREDENTIAL = """\
apiVersion: v1
kind: Secret
metadata: {name: edge, namespace: shop}
"""


@attrs.frozen
class Done:
    exit_code: int
    stdout: str
    stderr: str


def plan(*arguments: str | Path, stdin: str = "") -> Done:
    """The command, in this process."""
    with CliRunner().isolation(input=stdin) as (out, err, _), pytest.raises(SystemExit) as caught:
        main(["plan", *map(str, arguments)])
    assert isinstance(caught.value.code, int)
    return Done(caught.value.code, out.getvalue().decode(), err.getvalue().decode())


def as_json(*arguments: str | Path) -> Any:
    """The plan; lines that a control plane in this process logs meanwhile are before or after it."""
    text = plan(*arguments, "-o", "json").stdout
    start = re.search(r"^\{", text, re.MULTILINE)
    assert start is not None, text
    return json.JSONDecoder().raw_decode(text, start.start())[0]


def folder(parent: Path, name: str, **files: str) -> Path:
    made = parent / name
    made.mkdir()
    for file, text in files.items():
        (made / f"{file}.yaml").write_text(text)
    return made


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return folder(tmp_path, "before", reviews=SERVICE, ratings=RATINGS, route=ROUTE, edge=EDGE)


def actions(found: Mapping[str, Any]) -> dict[str, str]:
    return {each["object"]: each["action"] for each in found["objects"]}


def test_folder_with_folder_says_what_each_proxy_gets_and_which_line_decides_it(before: Path, tmp_path: Path) -> None:
    route = ROUTE.replace("timeout: 1s", "timeout: 2s")
    after = folder(tmp_path, "after", reviews=SERVICE, route=route, edge=EDGE)
    found = as_json(after, "--against", before)
    assert actions(found) == {"ServiceEntry/shop/ratings": "delete", "VirtualService/shop/reviews": "update"}
    (changed,) = [each for each in found["objects"] if each["action"] == "update"]
    assert changed["fields"] == [{"path": "spec.http[main].timeout", "before": "1s", "after": "2s", "line": 8}]
    (table,) = [each for each in found["resources"] if each["type"] == "RDS" and each["name"] == "9080"]
    assert {"object": "VirtualService/shop/reviews", "where": f"{after}/route.yaml:8"} in table["causes"]
    assert {each["path"] for each in table["fields"]} == {
        "virtual_hosts[reviews.test:9080].routes[main].route.timeout",
        "virtual_hosts[reviews.test:9080].routes[main].route.max_grpc_timeout",
        "virtual_hosts[ratings.test:9080]",
    }
    removed = next(each for each in found["resources"] if each["name"] == "outbound|9080||ratings.test")
    assert (removed["type"], removed["action"]) == ("CDS", "delete")
    assert [cause["object"] for cause in removed["causes"]] == ["ServiceEntry/shop/ratings"]
    assert {each["proxy"] for each in found["proxies"]} == {"edge.shop", "reviews-1.shop", "ratings-1.shop"}
    assert found["bytes"] == sum(each["bytes"] for each in found["proxies"])


def test_a_file_is_laid_over_and_text_shows_equal_changes_once(before: Path, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(ROUTE.replace("timeout: 1s", "timeout: 3s"))
    done = plan(tmp_path / "new.yaml", "--against", before, "--proxies", "r*")
    assert done.exit_code == 0
    assert f"  ~ VirtualService/shop/reviews  ({tmp_path}/new.yaml:1)" in done.stdout
    assert '      ~ spec.http[main].timeout: "1s" -> "3s"  (line 8)' in done.stdout
    assert "~ RDS 9080  [ratings-1.shop, reviews-1.shop]" in done.stdout
    assert "edge" not in done.stdout
    assert "0 to add, 1 to update, 0 to delete" in done.stdout


def test_exit_codes(before: Path, tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text(ROUTE)
    (tmp_path / "new.yaml").write_text(ROUTE.replace("1s", "3s"))
    (tmp_path / "broken.yaml").write_text(BROKEN)
    (tmp_path / "wrong.yaml").write_text(ROUTE.replace("host: reviews.test", "host: reviews.test, subset: v3"))
    against = ("--against", before, "--detailed-exitcode")
    assert plan(tmp_path / "same.yaml", *against).exit_code == 0
    assert plan(tmp_path / "new.yaml", *against).exit_code == 3
    refused = plan(tmp_path / "broken.yaml", *against)
    assert refused.exit_code == 1
    assert f"  {tmp_path}/broken.yaml:8: VirtualService/shop/broken: spec.http[0].timeout: " in refused.stdout
    assert "No object changes." in refused.stdout
    wrong = plan(tmp_path / "wrong.yaml", *against)
    assert wrong.exit_code == 1
    assert f"  + {tmp_path}/wrong.yaml:9: error: IST0101: VirtualService/shop/reviews: Referenced host" in wrong.stdout
    missing = plan(tmp_path / "missing.yaml", *against)
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert plan("--no-such-flag").exit_code == 2
    assert plan("-", "--against", "-").exit_code == 2
    (tmp_path / "envoy.yaml").write_text("static_resources: {}\n")
    other = plan(tmp_path / "envoy.yaml", *against)
    assert (other.exit_code, "envoy.yaml (a bootstrap of Envoy)" in other.stderr) == (0, True)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    deep = plan(tmp_path / "new.yaml", *against, "--proxy-file", tmp_path / "deep.json")
    assert (deep.exit_code, deep.stderr.count("\n")) == (1, 1)


def test_nothing_is_deleted_while_a_part_of_the_folder_cannot_be_read(before: Path, tmp_path: Path) -> None:
    after = folder(tmp_path, "after", reviews=SERVICE, garbled="apiVersion: [")
    done = plan(after, "--against", before)
    assert done.exit_code == 1
    assert "nothing is taken to be deleted" in done.stderr
    assert "0 to delete" in done.stdout or "No object changes." in done.stdout
    refused = folder(
        tmp_path, "refused", reviews=SERVICE, ratings=RATINGS, edge=EDGE, route=ROUTE.replace("1s", "soon")
    )
    assert as_json(refused, "--against", before)["objects"] == []  # its last good version stays


def test_standard_input_mesh_config_and_nodes_of_ones_own(before: Path, tmp_path: Path) -> None:
    node = {"id": "sidecar~10.9.9.9~own-1.shop~shop.svc.cluster.local", "metadata": {"LABELS": {"app": "own"}}}
    (tmp_path / "node.json").write_text(json.dumps(node))
    done = plan(
        "-",
        "--against",
        before,
        "--proxy-file",
        tmp_path / "node.json",
        stdin="outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n",
    )
    assert done.exit_code == 0, done.stderr
    assert "~ mesh" in done.stdout or "+ mesh" in done.stdout
    assert "Proxies: own-1.shop is sent" in done.stdout
    (tmp_path / "node.json").write_text('{"id": "what"}')
    assert "malformed node id" in plan("-", "--against", before, "--proxy-file", tmp_path / "node.json").stderr


def test_which_of_several_changes_a_resource_follows_from_is_found_by_trying_each_alone(
    before: Path, tmp_path: Path
) -> None:
    mesh = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"
    after = folder(
        tmp_path, "after", ratings=RATINGS, edge=EDGE, mesh=mesh, route=ROUTE.replace("1s", "2s"), reviews=SERVICE
    )
    found = as_json(after, "--against", before)
    assert actions(found) == {"VirtualService/shop/reviews": "update", "mesh": "add"}
    causes = {
        (each["type"], each["name"]): [cause["object"] for cause in each["causes"]] for each in found["resources"]
    }
    assert causes["LDS", "virtualOutbound"] == ["mesh"]
    assert causes["RDS", "9080"][0] == "VirtualService/shop/reviews"


def test_hostile_names_are_escaped(before: Path, tmp_path: Path) -> None:
    node = {"id": "sidecar~10.9.9.9~\u001b[31mred.shop~shop.svc.cluster.local"}
    (tmp_path / "node.json").write_text(json.dumps(node))
    (tmp_path / "new.yaml").write_text(ROUTE.replace("1s", "3s"))
    done = plan(tmp_path / "new.yaml", "--against", before, "--proxy-file", tmp_path / "node.json")
    assert "\\x1b[31mred.shop" in done.stdout
    nobody = plan(
        tmp_path / "new.yaml", "--against", before, "--proxy-file", tmp_path / "node.json", "--proxies", "web"
    )
    assert "there are \\x1b[31mred.shop\n" in nobody.stderr
    assert "\x1b" not in done.stdout


def test_a_router_is_made_up_for_each_selector_and_a_sidecar_for_each_service_and_set_of_labels(tmp_path: Path) -> None:
    edges = [
        EDGE.replace("app: edge", f"istio: edge, app: {app}").replace("name: edge", f"name: {app}") for app in "ab"
    ]
    other = SERVICE.replace("reviews.test", "reviews.other").replace("name: reviews", "name: other")
    books = SERVICE.replace("reviews", "books").replace("endpoints: [", "endpoints: [{address: 10.0.0.4}, ")
    files = folder(tmp_path, "all", edge_a=edges[0], edge_b=edges[1], one=SERVICE, two=other, three=books)
    found = {each["proxy"] for each in as_json(files, "--against", folder(tmp_path, "none"))["proxies"]}
    routers, sidecars = (
        {"edge.shop", "edge-2.shop"},
        {"reviews-1.shop", "reviews-2.shop", "books-1.shop", "books-2.shop"},
    )
    assert found == routers | sidecars


@pytest.mark.plane
async def test_credentials_stay_unless_some_are_among_the_files(before: Path, tmp_path: Path) -> None:
    served, proposed = tmp_path / "served", tmp_path / "proposed"
    files = write_certificates(tmp_path, "cert", dns=("a.test",))
    for place, name in ((served, "one"), (served, "two"), (proposed, "one")):
        write_credential(place / "shop", name, files)
    async with running_plane(before, secrets_dir=served) as plane:
        live = (before, "--delete", "--pilot", plane.addresses.http)
        without = await trio.to_thread.run_sync(lambda: plan(*live))
        assert "No object changes." in without.stdout
        assert "credentials (2) are taken to stay" in without.stderr
        found = await trio.to_thread.run_sync(lambda: as_json(*live, "--secrets-dir", proposed))
        assert actions(found) == {"secret/shop/two": "delete"}


@pytest.mark.plane
async def test_a_source_may_be_named_and_be_all_of_the_files(tmp_path: Path) -> None:
    config = folder(tmp_path, "config", reviews=SERVICE, ratings=RATINGS)
    (tmp_path / "reviews.yaml").write_text(SERVICE.replace("10.0.0.1", "10.0.0.9"))
    async with running_plane(config) as plane:
        live = ("--pilot", plane.addresses.http)
        path = tmp_path / "reviews.yaml"
        over = await trio.to_thread.run_sync(lambda: as_json(path, *live))
        assert actions(over) == {"ServiceEntry/shop/reviews": "update"}
        gone = await trio.to_thread.run_sync(lambda: as_json(path, "--delete", *live))
        assert actions(gone) == {"ServiceEntry/shop/reviews": "update", "ServiceEntry/shop/ratings": "delete"}
        assert {each["proxy"] for each in gone["proxies"]} == {"reviews-1.shop", "ratings-1.shop"}  # made up
        mesh = "accessLogFile: /dev/stdout\n"
        in_mesh = await trio.to_thread.run_sync(lambda: plan("-", "--source", "files", *live, stdin=mesh))
        assert "~ LDS" in in_mesh.stdout, "the mesh config is of no other source"
        wrong = await trio.to_thread.run_sync(lambda: plan(path, "--source", "consul", *live))
        assert (wrong.exit_code, "Objects" in wrong.stdout) == (1, False)
        assert "there is no source consul; there are mesh, files" in wrong.stderr
        nobody = await trio.to_thread.run_sync(lambda: plan(path, "--proxies", "web-*", *live))
        assert "no proxy is called web-*" in nobody.stderr


@pytest.mark.smoke
@pytest.mark.envoy
async def test_a_live_plane_then_pushes_to_a_real_envoy_what_the_plan_said(tmp_path: Path) -> None:
    config = folder(tmp_path, "config", reviews=SERVICE, route=ROUTE)
    (tmp_path / "route.yaml").write_text(ROUTE.replace("1s", "4s") + "---\n" + RATINGS)
    node = EnvoyNode("web-1", namespace="shop", labels={"app": "web"})
    async with running_plane(config) as plane, real_envoy(plane.addresses.grpc, tmp_path, node, delta=True) as envoy:
        status = plane.state.xds.status
        await eventually(envoy.takes_traffic)
        sent = status.totals.bytes_sent.total()
        arguments = (tmp_path / "route.yaml", "--pilot", plane.addresses.http)
        found = await trio.to_thread.run_sync(lambda: as_json(*arguments))
        assert actions(found) == {"ServiceEntry/shop/ratings": "add", "VirtualService/shop/reviews": "update"}
        (proxy,) = found["proxies"]
        assert proxy["proxy"] == "web-1.shop"
        assert status.totals.bytes_sent.total() == sent  # nothing was applied
        (config / "route.yaml").write_text((tmp_path / "route.yaml").read_text())
        await eventually(lambda: has(envoy, "outbound|9080||ratings.test"))
        await eventually(
            lambda: status.totals.bytes_sent.total() == sent + proxy["bytes"], what="as many bytes as planned"
        )


async def has(envoy: RealEnvoy, cluster: str) -> bool:
    return cluster in await envoy.dynamic("Cluster")
