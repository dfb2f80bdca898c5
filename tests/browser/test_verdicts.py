"""What the page says of things that are ill, were ill, or are on their way: as it is, the same on every view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.ops.causes import proxies
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.safety.state.settings import StateSettings
from tests.browser.looking import go, looking, shown
from tests.browser.mesh import BROKEN, REASON, WELL
from tests.support.browser import PlaneThread, plane_thread
from tests.support.envoy import eventually
from tests.support.picky import ODD, WORDS, proxy
from tests.support.planes import SERVICE

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: ratings, namespace: shop}
spec:
  hosts: [ratings.shop.svc.cluster.local]
  http: [{timeout: 5s, route: [{destination: {host: ratings.shop.svc.cluster.local}}]}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "config"
    found.mkdir()
    (found / "mesh.yaml").write_text(WELL)
    return found


@pytest.fixture
def plane(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PlaneThread]:
    more = getattr(request, "param", {})
    with plane_thread(folder, state=StateSettings(folder=tmp_path / "state"), **more) as found:
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    yield from looking(chromium, plane.url)


def picky(plane: PlaneThread, name: str, ip: str) -> None:
    """A proxy that refuses what has a mark."""
    plane.start(proxy, plane.plane.addresses.grpc, name=name, ip=ip)


def test_a_withheld_object_is_told_on_now_and_at_its_proxies(page: Any, plane: PlaneThread, folder: Path) -> None:
    picky(plane, "web-1", "10.9.9.1")
    picky(plane, "web-2", "10.9.9.2")
    (folder / "odd.yaml").write_text(ODD)
    go(page, "#/")
    cause = page.locator(".cause", has_text="ServiceEntry/shop/odd")
    cause.get_by_text("withheld", exact=True).wait_for()
    assert WORDS in cause.inner_text()
    command = cause.locator(".command").inner_text()
    assert command.startswith("mesh-pilot describe") and "ServiceEntry/shop/odd" in command
    go(page, "#/proxies/web-1.shop")
    page.locator(".verdict", has_text="withheld").get_by_role("link", name="ServiceEntry/shop/odd").wait_for()
    go(page, "#/proxies")
    page.locator("tr", has_text="web-1.shop").get_by_text("withheld", exact=True).wait_for()
    (folder / "odd.yaml").unlink()
    go(page, "#/")
    page.locator(".cause").wait_for(state="detached")
    assert plane.plane.state.xds.status.recent_nacks(), "a refusal that is over is remembered, and not listed"


def test_a_running_rollout_is_in_progress_with_its_step_and_its_commands(
    page: Any, plane: PlaneThread, folder: Path
) -> None:
    (folder / "route.yaml").write_text(ROUTE)
    plane.connect("web-1")
    plane.connect("web-2")
    rollouts = plane.plane.state.rollouts
    assert rollouts is not None

    async def arm() -> None:
        plan = RolloutPlan(steps=(50.0, 100.0))
        rollouts.order(lambda progress: progress.arm(plan, trio.current_time()), "start")

    async def abort() -> None:
        rollouts.order(lambda progress: progress.abort("an operator has aborted it"), "abort")

    go(page, "#/")
    plane.run(arm)
    (folder / "route.yaml").write_text(ROUTE.replace("5s", "3s"))
    part = page.locator(".part", has_text="In progress").last
    part.get_by_text("step 1 of 2").wait_for()
    assert "VirtualService/shop/ratings" in part.inner_text() and "mesh-pilot rollout abort" in part.inner_text()
    go(page, "#/changes")
    part = page.locator(".part", has_text="Rollout")
    part.get_by_text("step 1 of 2").wait_for()
    assert "mesh-pilot rollout abort" in part.inner_text()
    plane.run(abort)
    go(page, "#/")
    page.locator(".cause", has_text="VirtualService/shop/ratings").get_by_text("taken back", exact=True).wait_for()


def test_findings_alone_are_not_everything_is_well(page: Any, folder: Path, plane: PlaneThread) -> None:
    (folder / "route.yaml").write_text(ROUTE.replace("hosts:", "gateways: [nobody]\n  hosts:"))
    go(page, "#/")
    page.locator(".cause", has_text="IST0101").wait_for()
    assert page.locator(".sentence .mark.good").count() == 0
    assert "in force" not in page.locator(".sentence").inner_text()


def test_a_proxy_and_a_fleet_that_are_gone_are_known_with_when(
    page: Any, plane: PlaneThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "GRACE_SECONDS", 0.0)
    for number in range(4):
        plane.connect(f"web-{number}")
    go(page, "#/proxies")
    page.get_by_text("4 sidecars in shop").wait_for()
    plane.leave("web-3")
    page.locator("tr", has_text="web-3.shop").get_by_text("gone", exact=True).wait_for()
    for number in range(3):
        plane.leave(f"web-{number}")
    page.get_by_text("Not in sync: 4 proxies").wait_for()
    go(page, "#/")
    page.locator(".tiles a", has_text="gone").get_by_text("4", exact=True).wait_for()
    page.reload()
    page.locator(".tiles a", has_text="gone").get_by_text("4", exact=True).wait_for()
    go(page, "#/proxies/web-3.shop")
    assert "gone" in page.locator(".verdict").inner_text() and "last seen" in shown(page)


def test_a_held_source_is_told_with_what_it_holds_and_the_command(chromium: Any, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    for number in range(10):
        text = SERVICE.replace("name: reviews", f"name: a-{number}").replace("reviews.test", f"a-{number}.test")
        (config / f"{number}.yaml").write_text(text)
    with plane_thread(config) as plane:
        for page in looking(chromium, plane.url):
            go(page, "#/")
            for file in config.iterdir():
                file.rename(tmp_path / file.name)
            cause = page.locator(".cause", has_text="files")
            cause.get_by_text("held", exact=True).wait_for()
            assert "mesh-pilot admin accept files" in cause.inner_text()
            assert "10" in cause.inner_text()


@pytest.mark.parametrize("plane", [{"quarantine": None}], indirect=True)
def test_three_proxies_of_one_name_stay_three_rows(page: Any, plane: PlaneThread) -> None:
    for _ in range(3):
        plane.connect("web-1")
    go(page, "#/proxies?state=in+sync")
    rows = page.locator("main tbody tr")
    page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 3")
    plane.connect("web-2", refuses=REASON)
    page.locator(".chip", has_text="refused").wait_for()
    assert rows.count() == 3
    go(page, "#/proxies/web-1.shop")
    assert page.locator(".verdict").count() == 3 and "3 proxies have this name" in shown(page)


def test_a_proxy_with_a_slash_in_its_name_shows_what_it_was_sent(page: Any, plane: PlaneThread) -> None:
    plane.connect("we/b")
    go(page, "#/proxies")
    page.get_by_role("link", name="list them").click()
    page.get_by_role("link", name="we/b.shop").click()
    page.locator("h1", has_text="we/b.shop").wait_for()
    page.locator("summary", has_text="What it was sent").click()
    page.get_by_role("link", name="outbound|9080||ratings.shop.svc.cluster.local").click()
    page.locator("pre.yaml", has_text="ratings").wait_for()


def test_history_has_no_end_and_tells_objects_and_refusals(page: Any, plane: PlaneThread, folder: Path) -> None:
    plane.connect("web-1", refuses=REASON)
    for number in range(120):
        revision = plane.plane.state.world.revision
        (folder / "broken.yaml").write_text(ROUTE.replace("5s", f"{number + 1}s"))
        plane.run(eventually, lambda before=revision: plane.plane.state.world.revision > before)
    go(page, "#/changes")
    assert page.locator(".change").count() == 100
    page.keyboard.press("]")
    page.wait_for_function("() => document.querySelectorAll('.change').length > 110")
    assert page.get_by_role("button", name="older").count() == 0
    first = page.locator(".change").first
    assert "VirtualService/shop/ratings" in first.inner_text()
    assert "refused by web-1.shop" in shown(page)


@pytest.mark.parametrize("plane", [{"quarantine": QuarantineOptions(max_objects=0)}], indirect=True)
def test_one_cause_of_many_proxies_is_one_line(page: Any, plane: PlaneThread, folder: Path) -> None:
    for number in range(7):
        picky(plane, f"web-{number}", f"10.9.9.{number}")
    (folder / "odd.yaml").write_text(ODD)
    (folder / "broken.yaml").write_text(BROKEN)
    go(page, "#/")
    page.get_by_role("link", name="7 proxies, such as web-0.shop").click()
    page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 7")
