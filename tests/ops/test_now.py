"""The control plane now, as the API tells it: causes of what is wrong, once each, and nothing that is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.ops.api.now import workers_together
from mesh_pilot.ops.causes import now as now_module
from mesh_pilot.ops.causes import proxies as proxies_module
from mesh_pilot.ops.causes.now import INTERVAL_SECONDS, PlaneNow, sentence
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.safety.state.reader import HistoryError, HistoryReader
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.envoy import eventually
from tests.support.picky import ODD, WORDS, proxy
from tests.support.planes import SERVICE, running_plane

ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.test], http: [{timeout: 5s, route: [{destination: {host: reviews.test}}]}]}
"""


@attrs.frozen
class Web:
    """A control plane and a client of its API."""

    plane: ControlPlane
    client: httpx.AsyncClient
    folder: Path

    async def now(self) -> Any:
        reply = await self.client.get(f"http://{self.plane.addresses.http}/api/v1/now")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def causes(self, *states: str) -> Callable[[], Awaitable[bool]]:
        """True once the causes are in these states, the worst first."""

        async def found() -> bool:
            return [each["state"] for each in (await self.now())["causes"]] == [*states]

        return found


@pytest.fixture
async def web(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Web]:
    (tmp_path / "reviews.yaml").write_text(SERVICE)
    more = getattr(request, "param", {})
    async with running_plane(tmp_path, **more) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield Web(plane, client, tmp_path)


@pytest.mark.plane
async def test_a_plane_without_a_fault_says_so_and_what_comes_next(web: Web, nursery: trio.Nursery) -> None:
    found = await web.now()
    assert (found["causes"], found["severity"], found["in_progress"]) == ([], "ok", None)
    assert found["sentence"].startswith("All objects are in force; no proxy has connected yet")
    assert (found["totals"]["services"], found["totals"]["objects"]) == (1, 1)
    await nursery.start(proxy, web.plane.addresses.grpc)

    async def is_in_sync() -> bool:
        found = await web.now()
        return bool(found["totals"]["in_sync"] == 1 and found["sentence"] == "The 1 proxy has what is written.")

    await eventually(is_in_sync)
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_a_withheld_object_is_one_cause_that_ends_with_the_object(web: Web, nursery: trio.Nursery) -> None:
    for number in (1, 2):
        await nursery.start(partial(proxy, web.plane.addresses.grpc, name=f"web-{number}", ip=f"10.9.9.{number}"))
    (web.folder / "odd.yaml").write_text("# one line\n" + ODD)
    await eventually(web.causes("withheld"))
    (cause,) = (await web.now())["causes"]
    assert cause["subject"] == {"kind": "ServiceEntry", "namespace": "shop", "name": "odd"}
    assert cause["why"].startswith("web-") and cause["why"].endswith(WORDS)
    assert cause["where"].endswith("/odd.yaml:2")
    assert cause["command"] == "mesh-pilot describe ServiceEntry/shop/odd"
    assert (cause["severity"], cause["more"]) == ("error", "served instead: nothing, it is left out")
    assert cause["touches"]["of"] == 2
    path = f"http://{web.plane.addresses.http}/api/v1/objects/ServiceEntry/shop/odd"
    truth = (await web.client.get(path)).json()["truth"]
    assert (cause["touches"]["count"], cause["touches"]["of"]) == (truth["proxies_in_all"], truth["applies_to"])
    (web.folder / "odd.yaml").unlink()
    await eventually(web.causes())
    nacks = web.plane.state.xds.status.recent_nacks()
    assert nacks, "what was refused is remembered, and is not a cause"
    nursery.cancel_scope.cancel()


@pytest.mark.plane
@pytest.mark.parametrize("web", [{"quarantine": QuarantineOptions(max_objects=0)}], indirect=True)
async def test_the_same_refusal_by_several_proxies_is_one_cause(web: Web, nursery: trio.Nursery) -> None:
    for number in range(7):
        await nursery.start(partial(proxy, web.plane.addresses.grpc, name=f"web-{number}", ip=f"10.9.9.{number}"))
    (web.folder / "odd.yaml").write_text(ODD)

    async def is_refused_by_all() -> bool:
        causes = (await web.now())["causes"]
        return len(causes) == 1 and causes[0]["touches"]["count"] == 7

    await eventually(is_refused_by_all)
    found = await web.now()
    (cause,) = found["causes"]
    assert (cause["kind"], cause["state"]) == ("proxies", "refused")
    assert cause["touches"]["names"] == [f"web-{number}.shop" for number in range(5)]
    assert "made of ServiceEntry/shop/odd; nothing is done about it: more than 0 objects" in cause["more"]
    assert found["sentence"] == "1 cause touches 7 of 7 proxies; traffic keeps the last good configuration."
    assert found["totals"]["in_sync"] == 0
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_objects_with_one_mistake_are_one_cause_and_findings_are_told_by_object(web: Web) -> None:
    for number in range(4):
        text = SERVICE.replace("name: reviews", f"name: broken-{number}").replace("9080", "many")
        (web.folder / f"broken-{number}.yaml").write_text(text)
    (web.folder / "route.yaml").write_text(ROUTE.replace("hosts:", "gateways: [nobody, none], hosts:"))
    await eventually(web.causes("refused", "faulty"))
    found = await web.now()
    refused, faulty = found["causes"]
    assert (refused["touches"]["count"], refused["more"]) == (4, "nothing of it is in force")
    assert refused["touches"]["names"][0] == "ServiceEntry/shop/broken-0"
    assert faulty["subject"] == {"kind": "VirtualService", "namespace": "shop", "name": "reviews"}
    assert faulty["why"].count("[IST0101]") == 2
    assert found["analysis"]["errors"] >= 2
    since = refused["since"]
    (web.folder / "route.yaml").unlink()
    await eventually(web.causes("refused"))
    assert (await web.now())["causes"][0]["since"] == since


@pytest.mark.plane
async def test_services_that_nobody_can_answer_for_are_causes(web: Web) -> None:
    for number in range(3):
        text = SERVICE.replace("name: reviews", f"name: empty-{number}").replace("reviews.test", f"empty-{number}.test")
        (web.folder / f"{number}.yaml").write_text(text.partition("  endpoints:")[0])

    async def are_counted() -> bool:
        return bool((await web.now())["totals"]["without_endpoints"] == 3)

    await eventually(are_counted)
    found = await web.now()
    (cause,) = found["causes"]
    assert (cause["kind"], cause["state"], cause["severity"]) == ("service", "empty", "warning")
    assert cause["touches"] == {
        "count": 3,
        "of": 4,
        "what": "services",
        "names": ["empty-0.test", "empty-1.test", "empty-2.test"],
    }


@pytest.mark.plane
async def test_a_held_source_is_a_cause_with_the_order_that_lets_go(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    for number in range(10):
        text = SERVICE.replace("name: reviews", f"name: a-{number}").replace("reviews.test", f"a-{number}.test")
        (folder / f"{number}.yaml").write_text(text)
    async with running_plane(folder) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        web = Web(plane, client, folder)
        await eventually(web.causes())
        for file in folder.iterdir():
            file.rename(tmp_path / file.name)
        await eventually(web.causes("held"))
        (cause,) = (await web.now())["causes"]
        assert (cause["kind"], cause["subject"]["name"]) == ("source", "files")
        assert cause["command"] == "mesh-pilot admin accept files"
        assert (cause["touches"]["count"], len(cause["touches"]["names"])) == (10, 5)


@pytest.mark.plane
async def test_a_rollout_is_in_progress_and_taken_back_a_cause(web: Web, nursery: trio.Nursery) -> None:
    (web.folder / "route.yaml").write_text(ROUTE)
    client = partial(proxy, web.plane.addresses.grpc)
    for number in (1, 2):
        await nursery.start(partial(client, name=f"web-{number}", ip=f"10.9.9.{number}", routes=["9080"]))
    rollouts = web.plane.state.rollouts
    assert rollouts is not None
    key = ConfigKey("VirtualService", "shop", "reviews")
    await eventually(lambda: web.plane.state.world.config.peek(key) is not None)
    rollouts.order(lambda progress: progress.arm(RolloutPlan(steps=(50.0, 100.0)), trio.current_time()), "start")
    (web.folder / "route.yaml").write_text(ROUTE.replace("5s", "3s"))

    async def is_running() -> bool:
        rollout = (await web.now())["in_progress"]
        return rollout is not None and rollout["phase"] == "running"

    await eventually(is_running)
    found = await web.now()
    assert found["causes"] == []
    assert found["in_progress"]["commands"] == [f"mesh-pilot rollout {each}" for each in ("pause", "promote", "abort")]
    assert found["in_progress"]["steps"] == [50.0, 100.0]
    rollouts.order(lambda progress: progress.abort("an operator has aborted it"), "abort")

    async def is_taken_back() -> bool:
        return "taken back" in [each["state"] for each in (await web.now())["causes"]]

    await eventually(is_taken_back)
    cause = (await web.now())["causes"][0]
    assert (cause["why"], cause["touches"]["count"]) == ("an operator has aborted it", 2)
    assert cause["touches"]["of"] == 2
    assert cause["where"].endswith("/route.yaml:1")
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_a_proxy_that_has_left_is_told_and_a_whole_fleet_is_worse(
    web: Web, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies_module, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(now_module, "STALE_SECONDS", 0.0)
    scopes = [
        await nursery.start(partial(proxy, web.plane.addresses.grpc, name=f"web-{number}", ip=f"10.9.9.{number}"))
        for number in (1, 2)
    ]
    await eventually(lambda: len([*web.plane.state.xds.status.proxies()]) == 2)
    scopes[0].cancel()
    await eventually(web.causes("gone"))
    (cause,) = (await web.now())["causes"]
    assert (cause["severity"], cause["subject"]["name"], cause["touches"]["of"]) == ("warning", "web-1.shop", 2)
    scopes[1].cancel()
    await eventually(web.causes("gone"))
    await eventually(lambda: len([*web.plane.state.xds.status.proxies()]) == 0)
    (cause,) = (await web.now())["causes"]
    assert (cause["severity"], cause["why"]) == ("error", "all proxies have left")
    await nursery.start(partial(proxy, web.plane.addresses.grpc, name="web-1", ip="10.9.9.77"))
    await nursery.start(partial(proxy, web.plane.addresses.grpc, name="web-2", ip="10.9.9.2"))
    await eventually(web.causes())
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_a_fleet_that_does_not_come_back_after_a_restart_is_told(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies_module, "GRACE_SECONDS", 0.0)
    config, state = tmp_path / "config", StateSettings(folder=tmp_path / "state")
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    async with running_plane(config, state=state) as plane:
        scope = await nursery.start(partial(proxy, plane.addresses.grpc))

        def is_kept() -> bool:
            with suppress(HistoryError), HistoryReader.open(state.folder) as history:
                return [each.proxy.name for each in history.proxies()] == ["web-1.shop"]
            return False

        await eventually(is_kept)
        scope.cancel()
    async with running_plane(config, state=state) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        web = Web(plane, client, config)
        await eventually(web.causes("gone"))
        (cause,) = (await web.now())["causes"]
        assert (cause["subject"]["name"], cause["severity"], cause["why"]) == (
            "web-1.shop",
            "error",
            "all proxies have left",
        )
        await nursery.start(partial(proxy, plane.addresses.grpc))
        await eventually(web.causes())
        nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_two_objects_of_one_name_are_a_cause(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, seconds in zip(folders, ("5s", "3s"), strict=True):
        folder.mkdir()
        (folder / "route.yaml").write_text(ROUTE.replace("5s", seconds))
    (folders[0] / "reviews.yaml").write_text(SERVICE)
    async with running_plane(*folders) as running, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        web = Web(running, client, folders[0])
        await eventually(web.causes("conflicting"))
        (cause,) = (await web.now())["causes"]
        assert cause["subject"] == {"kind": "VirtualService", "namespace": "shop", "name": "reviews"}
        assert cause["severity"] == "warning" and cause["where"].endswith("/other/route.yaml:1")


@pytest.mark.plane
async def test_machines_with_one_name_are_a_cause(web: Web, nursery: trio.Nursery) -> None:
    for number in (1, 2):
        await nursery.start(partial(proxy, web.plane.addresses.grpc, name="clone", ip=f"10.9.9.{number}"))
    await eventually(web.causes("conflicting"))
    (cause,) = (await web.now())["causes"]
    assert cause["why"].startswith("2 proxies have the name clone.shop")
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_twenty_viewers_cost_what_one_does(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now_module, "STALE_SECONDS", 1e9)
    found = PlaneNow(web.plane.state)
    looks = 0

    async def computed() -> Any:
        nonlocal looks
        looks += 1
        return looks

    monkeypatch.setattr(found, "_computed", computed)
    answers: list[Any] = []

    async def view() -> None:
        answers.append(await found._get())

    async def views() -> None:
        async with trio.open_nursery() as viewers:
            for _ in range(20):
                viewers.start_soon(view)

    await views()
    await views()
    assert (looks, len(answers)) == (1, 40), "nothing has changed"
    web.plane.state.world.revision += 1
    began = trio.current_time()
    await views()
    assert (looks, answers[-20:]) == (2, [2] * 20), "an answer is not older than the question"
    assert trio.current_time() - began < INTERVAL_SECONDS + 5


@pytest.mark.plane
async def test_only_services_that_changed_are_looked_at_again(web: Web) -> None:
    found = PlaneNow(web.plane.state)
    found._health.look()
    assert found._health.assessed == 1
    (web.folder / "other.yaml").write_text(
        SERVICE.replace("name: reviews", "name: other").replace("reviews.test", "other.test")
    )
    await eventually(lambda: bool(web.plane.state.world.services_named.peek("other.test")))
    found._health.look()
    found._health.look()
    assert found._health.assessed == 2


def _answer(names: list[str], *, in_sync: int, of: int) -> dict[str, Any]:
    cause = {
        "kind": "proxies",
        "subject": {"kind": "Proxy", "namespace": "shop", "name": names[0]},
        "state": "refused",
        "severity": "error",
        "why": "no",
        "since": None,
        "touches": {"count": len(names), "of": of, "what": "proxies", "names": names},
    }
    totals = {"proxies": of, "in_sync": in_sync, "touched": len(names), "gone": 0, "services": 1, "objects": 1}
    row = {"revision": 7, "proxies": of, "waiting": 0, "bytes": 10, "nacks": len(names), "acked_seconds": float(of)}
    last = [{**row, "refused_by": names, "is_over": True}]
    return {"causes": [cause], "more_causes": 0, "totals": {**totals, "next_certificate": None}, "last_hour": last}


def test_a_cause_at_the_proxies_of_several_workers_is_one() -> None:
    found: Any = workers_together({1: _answer(["a", "c"], in_sync=3, of=5), 2: _answer(["b"], in_sync=0, of=1)})
    (cause,) = found["causes"]
    assert cause["touches"] == {"count": 3, "of": 6, "what": "proxies", "names": ["a", "b", "c"]}
    assert (found["totals"]["in_sync"], found["totals"]["proxies"]) == (3, 6)
    (last,) = found["last_hour"]
    assert (last["proxies"], last["nacks"], last["acked_seconds"]) == (6, 3, 5.0)
    assert last["refused_by"] == ["a", "c", "b"]
    assert found["sentence"] == "1 cause touches 3 of 6 proxies; traffic keeps the last good configuration."


def test_an_empty_plane_says_what_comes_next() -> None:
    assert "--config-dir" in sentence(0, 0, 0, 0)
