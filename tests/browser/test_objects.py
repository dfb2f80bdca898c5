"""One object: what is in force of it, what its source has instead, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.events import RolloutPlan
from tests.browser import shop
from tests.browser.looking import go, looking
from tests.support.browser import PlaneThread, plane_thread
from tests.support.curious import curious
from tests.support.picky import ODD, proxy

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUTES = "#/objects/VirtualService/shop/reviews"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(shop.objects())
    return tmp_path


@pytest.fixture
def plane(folder: Path) -> Iterator[PlaneThread]:
    with plane_thread(folder) as found:
        for number in (1, 2):
            found.start(curious, found.plane.addresses.grpc, EnvoyNode(f"web-{number}", "shop", f"10.9.9.{number}"))
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    yield from looking(chromium, plane.url)


def test_an_object_that_is_taken_back_is_not_in_force_and_shows_what_is(
    page: Any, plane: PlaneThread, folder: Path
) -> None:
    rollouts = plane.plane.state.rollouts
    assert rollouts is not None

    async def arm() -> None:
        plan = RolloutPlan(steps=(50.0, 100.0))
        rollouts.order(lambda progress: progress.arm(plan, trio.current_time()), "start")

    async def abort() -> None:
        rollouts.order(lambda progress: progress.abort("an operator has aborted it"), "abort")

    go(page, ROUTES)
    page.locator(".verdict.good", has_text="in force").wait_for()
    plane.run(arm)
    (folder / "shop.yaml").write_text(shop.objects().replace("timeout: 5s", "timeout: 3s"))
    page.locator(".verdict", has_text="in canary").wait_for()
    plane.run(abort)
    page.locator(".verdict", has_text="taken back").wait_for()
    assert page.locator(".verdict.good").count() == 0
    page.locator(".diff .removed", has_text="5s").wait_for()
    assert page.locator(".diff .added").inner_text().strip() == '+      timeout: "3s"'
    assert page.get_by_role("heading", name="As it is in its source").count() == 1


def test_an_object_that_is_withheld_says_from_whom_and_why(page: Any, plane: PlaneThread, folder: Path) -> None:
    plane.start(proxy, plane.plane.addresses.grpc, name="old-1", ip="10.8.0.1")
    (folder / "odd.yaml").write_text(ODD)
    go(page, "#/objects?q=odd")
    page.locator("tr", has_text="odd").get_by_text("withheld", exact=True).wait_for()
    page.get_by_role("link", name="odd", exact=True).click()
    verdict = page.locator(".verdict", has_text="withheld")
    verdict.get_by_role("link", name="old-1.shop").wait_for()
    assert "old-1.shop refused it" in verdict.inner_text()
    assert page.locator(".verdict.good").count() == 0
