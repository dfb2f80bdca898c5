"""What an operator comes for: each answer is right, and at most two clicks from Now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.safety.state.settings import StateSettings
from tests.browser.looking import HEIGHT, go, looking, shown
from tests.browser.mesh import WELL
from tests.support.browser import PlaneThread, plane_thread
from tests.support.picky import ODD, WORDS, proxy
from tests.support.planes import SERVICE

pytestmark = [pytest.mark.process, pytest.mark.slow]

SERVICES, PROXIES = 300, 100


def entry(number: int, endpoints: bool) -> str:
    text = SERVICE.replace("name: reviews", f"name: s-{number:03}").replace("reviews.test", f"s-{number:03}.test")
    return text if endpoints else text.partition("  endpoints:")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("config")
    (found / "mesh.yaml").write_text(WELL)
    (found / "many.yaml").write_text("---\n".join(entry(number, number >= 18) for number in range(SERVICES)))
    return found


@pytest.fixture(scope="module")
def plane(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    """300 services and 100 proxies, with two causes: 15 proxies refuse an object, and 18 services have no endpoints."""
    state = StateSettings(folder=tmp_path_factory.mktemp("state") / "state")
    quarantine = QuarantineOptions(max_objects=0)
    with plane_thread(folder, quarantine=quarantine, state=state) as found:
        for number in range(PROXIES - 15):
            found.connect(f"web-{number:02}")
        for number in range(15):
            found.start(proxy, found.plane.addresses.grpc, name=f"old-{number:02}", ip=f"10.9.9.{number}")
        (folder / "odd.yaml").write_text(ODD)
        yield found


@attrs.define
class Visit:
    """A visit of the page that counts clicks."""

    page: Any
    clicks: int = 0

    def click(self, what: Any) -> None:
        what.click()
        self.clicks += 1
        assert self.clicks <= 2


@pytest.fixture
def visit(chromium: Any, plane: PlaneThread) -> Iterator[Visit]:
    for page in looking(chromium, plane.url):
        go(page, "#/")
        page.get_by_role("link", name="15 proxies, such as old-00.shop").wait_for()
        yield Visit(page)


def test_now_fits_one_screen(visit: Visit) -> None:
    assert visit.page.locator(".cause").count() == 2
    assert visit.page.evaluate("document.documentElement.scrollHeight") <= HEIGHT
    assert "of 100 proxies" in visit.page.locator(".sentence").inner_text()


def test_which_proxies_are_not_in_sync_and_why(visit: Visit) -> None:
    page = visit.page
    visit.click(page.get_by_role("link", name="Proxies", exact=True))
    page.get_by_text("Not in sync: 15 proxies").wait_for()
    rows = page.locator("section[aria-label='Not in sync'] tbody tr")
    assert rows.count() == 15 and all(WORDS in each.inner_text() for each in rows.all())
    page.get_by_text("85 sidecars in shop").wait_for()


def test_what_changed_in_the_last_hour_and_who_refused_it(visit: Visit) -> None:
    """Without a click; the first of all revisions is one more away."""
    page = visit.page
    part = page.locator(".part", has_text="Last hour")
    assert "ServiceEntry/shop/odd" in part.inner_text()
    part.get_by_text("refused by old-").wait_for()
    visit.click(part.get_by_role("link", name="all changes"))
    page.locator(".change", has_text="refused by old-").wait_for()


def test_which_certificate_expires_next(visit: Visit) -> None:
    page = visit.page
    visit.click(page.locator(".tiles a", has_text="root"))
    page.locator("th", has_text="certificate expires").wait_for()


def test_whether_a_rollout_is_running_how_far_and_how_to_undo_it(
    visit: Visit, plane: PlaneThread, folder: Path
) -> None:
    rollouts, page = plane.plane.state.rollouts, visit.page
    assert rollouts is not None

    async def order(name: str) -> None:
        plan = RolloutPlan(steps=(5.0, 25.0, 100.0))
        orders = {
            "start": lambda progress: progress.arm(plan, trio.current_time()),
            "promote": lambda progress: progress.promote(),
        }
        rollouts.order(orders[name], name)

    plane.run(order, "start")
    try:
        (folder / "mesh.yaml").write_text(WELL.replace("timeout: 5s", "timeout: 3s"))
        part = page.locator(".part", has_text="In progress")
        part.get_by_text("step 1 of 3").wait_for()
        assert "VirtualService/shop/reviews" in part.inner_text()
        assert "mesh-pilot rollout abort" in part.inner_text()
        visit.click(page.get_by_role("link", name="Changes", exact=True))
        page.locator(".part", has_text="Rollout").get_by_text("5 %, 25 %, 100 %").wait_for()
        assert "Waits for" in shown(page)
    finally:
        plane.run(order, "promote")
