"""The web page as a person meets it, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.events import Endpoints, Event, EventSender, Synced, Upsert
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.sources.base.contract import SourceStatistics
from mesh_pilot.sources.files.source import FileSourceStatistics
from tests.browser.looking import go, looking
from tests.browser.mesh import BROKEN, GOOD, HOST, REASON, VIEWS
from tests.support.browser import PlaneThread, plane_thread
from tests.support.envoy import eventually

MOST_ANSWER = 2_000_000
"""Bytes."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("config")
    (found / "mesh.yaml").write_text(GOOD.replace("timeout: 5s", "timeout: 4s"))
    (found / "broken.yaml").write_text(BROKEN)
    return found


@pytest.fixture(scope="module")
def plane(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    """A plane with a state, a refused object, a proxy that is well, and one that refuses its clusters."""
    state = StateSettings(folder=tmp_path_factory.mktemp("state") / "state")
    with plane_thread(folder, quarantine=None, state=state) as found:
        found.connect("web-1")
        found.connect("web-2", refuses=REASON)
        (folder / "mesh.yaml").write_text(GOOD)
        found.run(eventually, lambda: found.plane.state.world.revision == 2)
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    """A page of the plane; what the browser complains of fails the test."""
    yield from looking(chromium, plane.url)


def test_what_is_wrong_is_on_top_and_a_change_is_shown_without_reloading(
    page: Any, plane: PlaneThread, folder: Path
) -> None:
    go(page, "#/")
    assert page.locator("main h2").first.inner_text().endswith("causes")
    assert "ServiceEntry/shop/broken" in page.locator(".causes").inner_text()
    page.get_by_role("link", name="Traffic", exact=True).click()
    page.get_by_role("link", name=HOST).click()
    tree = page.locator(".tree")
    tree.wait_for()
    text = re.sub(r"\s+", " ", tree.inner_text())
    assert (
        "path begins with /api; header end-user is jason or path matches /v2/.* testers timeout 5 s 3 retries" in text
    )
    assert "90 %" in text and "no DestinationRule declares the subset 'v3'" in text and "redirect (301) to /new" in text
    page.wait_for_function("() => document.querySelector('.pulse.live')")
    page.evaluate("window.stays = true")
    changed = GOOD.replace("weight: 90", "weight: 80").replace("weight: 5}", "weight: 10}")
    try:
        (folder / "mesh.yaml").write_text(changed)
        page.locator(".share", has_text="80 %").wait_for()
    finally:
        (folder / "mesh.yaml").write_text(GOOD)
    page.locator(".share", has_text="90 %").wait_for()
    assert page.evaluate("window.stays") is True
    assert page.locator("main .tree meter").count() == 3


@pytest.mark.slow
def test_a_login_by_the_form_lets_the_page_give_orders(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "tokens").write_text("operate a-token-that-may-operate alice\n")
    access = AccessSettings(token_file=tmp_path / "tokens")
    push = "async () => (await fetch('/api/v1/push', {method: 'POST', headers: {'X-Mesh-Pilot': '1'}})).status"
    with plane_thread(tmp_path / "config", access=access) as plane:
        for page in looking(chromium, plane.url):
            page.goto("/login?next=/debug")
            page.fill("input[name=token]", "a-token-that-may-operate")
            page.click("button")
            page.wait_for_url("**/debug")
            assert page.evaluate(push) == 200


def test_each_view_shows_what_it_is_for(page: Any) -> None:
    expected = {
        "now": ["causes", "ServiceEntry/shop/broken", REASON, "proxies", "Last hour", "shop/reviews"],
        "sources": ["files", "synced"],
        "services": [HOST, "3 of 3"],
        "service": ["10.0.0.3", "Who may reach it", "eu/b", "mTLS"],
        "proxies": ["Not in sync: 1 proxy", "web-2.shop", REASON, "1 sidecar in shop"],
        "proxy": ["in sync", "What applies to it", "What it was sent"],
        "resource": ["made from", "EDS"],
        "objects": ["VirtualService", "reviews", "mesh.yaml:"],
        "object": ["What it makes", "weight:", "IST0101"],
        "gateways": ["shop/edge", "no connected proxy serves it"],
        "gateway": ["Port 80", "path begins with /api", HOST, "90 %"],
        "calls": ["no proxy reports traffic"],
        "reporters": ["web-1.shop", "nothing"],
        "mesh": ["shop/edge", "shop/web", HOST],
        "changes": ["VirtualService/shop/reviews", "refused by web-2.shop"],
        "revision": ["sent to", "timeout"],
        "why": ["What would a request meet?"],
        "search": [HOST, "DestinationRule in shop"],
    }
    for view, texts in expected.items():
        go(page, VIEWS[view])
        shown = page.locator("main").inner_text()
        assert [each for each in texts if each not in shown] == [], f"{view}: {shown}"


@pytest.mark.slow
def test_a_revision_shows_its_changes_as_diffs(page: Any, plane: PlaneThread, folder: Path) -> None:
    (folder / "more.yaml").write_text(BROKEN.replace("broken", "late").replace("many", "80"))
    go(page, "#/changes")
    page.get_by_text("ServiceEntry/shop/late").first.wait_for()
    page.locator(".change a[data-entry]").first.click()
    page.locator(".diff .added", has_text="late.test").first.wait_for()
    (folder / "more.yaml").unlink()
    plane.run(eventually, lambda: plane.plane.state.world.statistics().services == 2)


@pytest.mark.slow
def test_the_page_tells_what_a_request_would_meet(page: Any, plane: PlaneThread) -> None:
    go(page, "#/ask")
    page.get_by_label("From the proxy").fill("web-1.shop")
    page.get_by_label("To").fill(f"{HOST}:9080/api")
    page.get_by_role("button", name="Ask").click()
    page.locator(".outcome").wait_for()
    assert "does not listen at port 9080" in page.locator(".outcome").inner_text(), "it asked for clusters only"
    page.get_by_label("From the proxy").fill("nobody")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("alert").wait_for()
    assert "no connected proxy 'nobody'" in page.get_by_role("alert").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_view_has_a_violation_of_accessibility(chromium: Any, plane: PlaneThread, scheme: str, width: int) -> None:
    """By the rules of WCAG and those of best practice."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for page in looking(chromium, plane.url, color_scheme=scheme, viewport={"width": width, "height": 800}):
        for view, address in VIEWS.items():
            go(page, address)
            violations = axe.run(page).response["violations"]
            found = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in violations]
            assert found == [], view


class Given:
    """A source of given events."""

    def __init__(self, *events: Event) -> None:
        self.name = "given"
        self.events = events

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        for event in (*self.events, Synced(self.name)):
            await events.send(event)
        await trio.sleep_forever()

    def statistics(self) -> SourceStatistics:
        return FileSourceStatistics(0, 0, True, "", 0, 0, 0, 0, "")


HOSTILE = (
    "<script>document.title='gone'</script>",
    "<img src=x onerror=\"document.title='gone'\">",
    "\"'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "\u202egnp.exe\u202c",
    "a\ud800b",
    "x" * 10_000,
    "%00%2f..?#&=",
    "{{7*7}}${7*7}",
)


@pytest.mark.slow
def test_names_of_others_are_text_on_every_view(chromium: Any, tmp_path: Path) -> None:
    events: list[Event] = []
    for number, name in enumerate(HOSTILE):
        host = f"h{number}{name}".encode("utf-8", "replace").decode()
        service = Service(host, f"n{number}{name}", (Port(80, name, Protocol.HTTP),), registry=name)
        endpoint = Endpoint("10.1.1.1", 80, name, labels={name: name}, service_account=name)
        events += [Upsert("given", service), Upsert("given", Endpoints(service.key, (endpoint,)))]
    with plane_thread(tmp_path, more_sources=[Given(*events)], quarantine=None) as plane:
        for number, name in enumerate(HOSTILE):
            if name.isascii() and len(name) < 1000:
                plane.connect(f"p{number}{name}", refuses=name)
        for page in looking(chromium, plane.url):
            for view in ("#/", "#/services", "#/proxies", "#/objects", "#/mesh", "#/changes", "#/search?q=h"):
                go(page, view)
                assert page.evaluate("document.querySelectorAll('main script, main img, main svg[onload]').length") == 0
                assert page.title().endswith("· mesh-pilot")
            go(page, "#/services")
            shown = page.locator("main tbody tr").count()
            assert shown == len(HOSTILE)
            for number in range(shown):
                go(page, "#/services")
                page.locator("main tbody a[data-entry]").nth(number).click()
                page.wait_for_function("() => document.querySelector('main h1').textContent !== 'Services'")
                assert page.title().endswith("· mesh-pilot")
                assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_large_mesh_comes_in_small_pieces(chromium: Any, tmp_path: Path) -> None:
    """10,000 services and 1,000 proxies: each answer is small, and there are few."""
    events: list[Event] = []
    for number in range(10_000):
        service = Service(f"s{number:05}.shop.svc.cluster.local", "shop", (Port(80, "http", Protocol.HTTP),))
        endpoint = Endpoint(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}", 80, "http")
        events += [Upsert("given", service), Upsert("given", Endpoints(service.key, (endpoint,)))]
    with plane_thread(tmp_path, more_sources=[Given(*events)], client_bounds=Bounds(max_scopes_per_peer=0)) as plane:
        for number in range(1000):
            plane.connect(f"web-{number:04}", ENDPOINT, ["outbound|80||s00001.shop.svc.cluster.local"])
        for page in looking(chromium, plane.url):
            answers: list[Any] = []
            page.on("response", lambda answer, into=answers: into.append(answer))
            for view in ("#/", "#/services/shop/s00001.shop.svc.cluster.local", "#/proxies", "#/search?q=s000"):
                go(page, view)
            page.goto("/#/services")
            page.get_by_text("1 to 100 of 10,000").first.wait_for()
            page.keyboard.press("]")
            page.get_by_text("101 to 200 of 10,000").first.wait_for()
            page.get_by_role("searchbox", name="Filter services").fill("s09999")
            page.get_by_text("1 service", exact=True).wait_for()
            go(page, "#/proxies?state=in+sync")
            page.get_by_text("1 to 100 of 1,000").first.wait_for()
            sizes = {answer.url: len(answer.body()) for answer in answers if "/events" not in answer.url}
        assert [(url, size) for url, size in sizes.items() if size > MOST_ANSWER] == []
        assert len(answers) < 80
        assert sum(sizes.values()) < 3 * MOST_ANSWER


@pytest.mark.slow
def test_the_page_stays_live_while_two_hundred_proxies_come_and_go(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    with plane_thread(tmp_path) as plane:
        for number in range(200):
            plane.connect(f"web-{number:03}")
        for page in looking(chromium, plane.url):
            go(page, "#/proxies?state=in+sync")
            page.get_by_text("of 200").first.wait_for()
            for turn in range(2):
                for number in range(turn % 2, 200, 2):
                    plane.leave(f"web-{number:03}")
                (tmp_path / "a.yaml").write_text(GOOD.replace("weight: 90", f"weight: {91 + turn}"))
                page.get_by_text("100 proxies", exact=True).wait_for()
                for number in range(turn % 2, 200, 2):
                    plane.connect(f"web-{number:03}")
                page.get_by_text("of 200").first.wait_for()
