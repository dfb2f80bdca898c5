"""Calls: the picture of real traffic of 300 services, the same as a table, and what is said where nothing is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.model.history import EdgeOutcome, RevisionTraffic
from tests.browser import calls
from tests.browser.looking import arrived, go, looking, shown
from tests.browser.mesh import GOOD, HOST
from tests.browser.test_page import Given
from tests.support.browser import PlaneThread, plane_thread
from tests.support.traffic_counts import Planted, reporting, row

pytestmark = [pytest.mark.process, pytest.mark.slow]

SHOP = "#/traffic?namespace=shop"
ILL_LINE = "a[aria-label^='shop-03.shop.mesh.internal calls shop-07.shop.mesh.internal']"


@attrs.frozen
class Calling:
    """A plane whose table of traffic is planted."""

    plane: PlaneThread
    planted: Planted

    @property
    def url(self) -> str:
        return self.plane.url


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calling]:
    folder = tmp_path_factory.mktemp("config")
    (folder / "route.yaml").write_text(calls.ROUTE)
    with plane_thread(folder, more_sources=[Given(*calls.services())], quarantine=None) as plane:
        traffic = plane.plane.state.traffic
        assert traffic is not None
        planted = Planted(traffic.table)
        calls.plant(planted)
        yield Calling(plane, planted)


@pytest.fixture
def page(chromium: Any, mesh: Calling) -> Iterator[Any]:
    yield from looking(chromium, mesh.url)


def boxes(page: Any) -> list[str]:
    return [each.text_content() for each in page.locator(".graph .box > text:not(.under)").all()]


def places(page: Any) -> dict[str, str]:
    """Where each box of the picture is."""
    script = """() => Object.fromEntries([...document.querySelectorAll('.graph .box')].map(
      each => [each.querySelector('text').textContent, each.getAttribute('transform')]))"""
    found: dict[str, str] = page.evaluate(script)
    return found


def test_a_mesh_of_300_services_is_ten_boxes_and_one_of_them_leads_to_its_services(page: Any) -> None:
    go(page, "#/services")
    page.get_by_role("link", name="Calls", exact=True).click()
    arrived(page, "#/traffic")
    assert sorted(boxes(page)) == sorted([*calls.NAMESPACES, "PassthroughCluster"])
    assert re.match(r"within: [\d,]+/s", page.locator(".graph .box", has_text="mail").locator(".under").text_content())
    page.locator(".graph a[href='#/traffic?namespace=shop']", has_text="worse: ").click()
    arrived(page, SHOP)
    found = boxes(page)
    assert len([each for each in found if each.startswith("shop-")]) == 30
    assert {"edge", "search"} == {each for each in found if not each.startswith("shop-")}, "neighbours are one box each"
    page.locator(".graph a", has_text="policy denies 30 calls").click()
    arrived(page, f"#/services/shop/{calls.DENYING}.shop.mesh.internal")
    page.go_back()
    arrived(page, SHOP)
    page.go_back()
    arrived(page, "#/traffic")


def test_what_fails_is_red_and_said_in_words_and_the_first_row(page: Any) -> None:
    go(page, "#/traffic")
    assert "worse: " in page.locator(".graph .box.bad .under").text_content()
    go(page, SHOP)
    line = page.locator(f".graph {ILL_LINE}")
    assert "25 % fail, worse" in line.get_attribute("aria-label")
    assert page.locator(".graph .line.bad").count() == 1
    first = " ".join(page.locator("#calls-table tbody tr").first.inner_text().split())
    assert "shop-03 shop shop-07.shop.mesh.internal" in first
    assert "75 %" in first and "100 %" in first and "worse" in first
    page.get_by_role("link", name="worse 1").click()
    arrived(page, "#/traffic?namespace=shop&state=worse")
    assert page.locator("#calls-table tbody tr").count() == 1


def test_calls_that_no_virtual_service_names_and_that_policies_deny_are_marked_and_found(page: Any) -> None:
    go(page, SHOP)
    routed = page.locator(".graph a[aria-label*=' calls shop-01']").first
    assert "no VirtualService" not in routed.get_attribute("aria-label") and routed.locator(".some").count() == 0
    assert page.locator(f".graph {ILL_LINE} .line.some").count() == 1
    page.get_by_role("link", name="denied by a policy").click()
    arrived(page, f"{SHOP}&only=denied")
    rows = page.locator("#calls-table tbody tr")
    assert "shop-02.shop.mesh.internal" in rows.first.inner_text() and "policy denies 30" in rows.first.inner_text()
    assert rows.count() == 1
    page.get_by_role("link", name="no VirtualService", exact=True).click()
    arrived(page, f"{SHOP}&only=unrouted")
    assert (
        "no VirtualService" in rows.first.inner_text() and "shop-01." not in page.locator("#calls-table").inner_text()
    )


def test_the_calls_between_two_namespaces_are_a_click_on_their_line(page: Any) -> None:
    go(page, "#/traffic")
    page.locator(".graph a[aria-label^='edge calls shop']").focus()
    page.keyboard.press("Enter")
    arrived(page, "#/traffic?namespace=edge&with=shop")
    assert {each.split("-")[0] for each in boxes(page)} == {"edge", "shop"}
    page.get_by_role("link", name="Remove the filter with shop").click()
    arrived(page, "#/traffic?namespace=edge")


def test_a_refresh_moves_no_box(page: Any, mesh: Calling) -> None:
    page.clock.install()
    page.route("**/api/v1/events", lambda route: route.fulfill(status=503))
    go(page, SHOP)
    before, words = places(page), page.locator(f".graph {ILL_LINE}").get_attribute("aria-label")
    calls.plant(mesh.planted, since_slots=3)
    page.clock.run_for(20_000)
    page.wait_for_function(
        "([line, words]) => document.querySelector('.graph ' + line).getAttribute('aria-label') !== words",
        arg=[ILL_LINE, words],
    )
    assert places(page) == before
    calls.plant(mesh.planted)


def test_the_keyboard_reaches_the_picture_and_the_table(page: Any) -> None:
    go(page, "#/services")
    page.keyboard.press("g")
    page.keyboard.press("l")
    arrived(page, "#/traffic")
    page.locator(".graph .skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('#calls-table') !== null")
    page.locator(".graph a[href='#/traffic?namespace=shop']", has_text="worse: ").focus()
    ring = "getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(ring) == "3px"
    page.keyboard.press("Enter")
    arrived(page, SHOP)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    arrived(page, "#/services/shop/shop-07.shop.mesh.internal")


def test_a_phone_has_the_table_as_cards(chromium: Any, mesh: Calling) -> None:
    for page in looking(chromium, mesh.url, viewport={"width": 390, "height": 844}):
        go(page, SHOP)
        assert page.locator(".graph").is_hidden()
        card = page.locator("#calls-table tbody tr").first
        assert page.evaluate("each => getComputedStyle(each).display", card.element_handle()) == "block"
        assert "worse" in card.inner_text() and "ten minutes ago" in card.locator("td").nth(4).get_attribute(
            "data-head"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_picture_has_the_colours_of_each_theme_and_those_that_are_forced(chromium: Any, mesh: Calling) -> None:
    stroke = "getComputedStyle(document.querySelector('.graph .line.bad path')).stroke"
    expected = {"light": "rgb(163, 22, 15)", "dark": "rgb(255, 154, 145)"}
    for scheme, colour in expected.items():
        for page in looking(chromium, mesh.url, color_scheme=scheme):
            go(page, SHOP)
            assert page.evaluate(stroke) == colour
    for page in looking(chromium, mesh.url, forced_colors="active"):
        go(page, SHOP)
        assert page.evaluate(stroke) not in expected.values()
        assert page.evaluate("getComputedStyle(document.querySelector('.graph .box text')).stroke") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_has_no_violation_of_accessibility(chromium: Any, mesh: Calling, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for page in looking(chromium, mesh.url, color_scheme=scheme):
        for view in ("#/traffic", SHOP, "#/services/shop/shop-01.shop.mesh.internal", "#/services"):
            go(page, view)
            violations = axe.run(page).response["violations"]
            assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in violations] == [], view


def test_a_service_has_ten_minutes_of_its_calls_its_callers_and_what_it_calls(page: Any) -> None:
    go(page, "#/services/shop/shop-01.shop.mesh.internal")
    chart = page.locator(".chart.large").get_attribute("aria-label")
    assert "requests in 10 minutes" in chart and "0 failed" in chart
    facts = " ".join(page.locator(".part", has_text="in flight").first.inner_text().split())
    assert "callers 1 workload" in facts and "arrived 50 a second" in facts
    assert re.search(r"from outside \d+ a second", facts), facts
    assert "shop-00" in page.get_by_role("table", name="Calls").first.inner_text()
    assert "shop-03.shop.mesh.internal" in page.get_by_role("table", name="Calls").last.inner_text()
    assert boxes(page) == ["shop-00", "shop-01", "shop-03", "shop-04"]


def test_the_list_of_services_has_their_calls(page: Any) -> None:
    go(page, "#/services?q=shop-07")
    line = page.locator("main tbody tr")
    assert "75 %" in line.inner_text() and line.locator(".chart .failed[d^=M]").count() == 1
    for piece in ("#/services?sort=host", "#/services?sort=-host&offset=100"):
        with page.expect_response(lambda each: "/traffic/services?" in each.url) as asked:
            go(page, piece)
        assert page.locator("main tbody tr").count() == page.locator("main tbody .chart").count() == 100
        assert len(asked.value.json()["items"]) == 100, "only those of the rows, however many services are called"


def test_requests_that_nobody_counts_are_unknown(page: Any) -> None:
    go(page, "#/traffic?namespace=crm&q=crm-09")
    line = page.locator("#calls-table tbody tr").first.inner_text()
    assert "attempts" in line and "requests unknown" in line
    assert "1 proxy reports attempts only" in shown(page)
    page.get_by_role("link", name="Who reports").click()
    arrived(page, "#/traffic/proxies")
    page.get_by_role("link", name="attempts 1").click()
    arrived(page, "#/traffic/proxies?state=attempts")
    assert "run its Envoy by mesh-pilot proxy" in page.locator("main tbody tr").inner_text()


def test_traffic_is_asked_for_once_in_five_seconds(page: Any) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/traffic?" in request.url else None)
    go(page, "#/traffic")
    for _ in range(3):
        go(page, "#/mesh")
        go(page, "#/traffic")
    assert len(asked) == 1


def test_refreshes_leave_nothing_behind(page: Any) -> None:
    page.clock.install()
    page.route("**/api/v1/events", lambda route: route.fulfill(status=503))
    go(page, SHOP)
    session = page.context.new_cdp_session(page)

    def heap_after(rounds: int) -> int:
        for _ in range(rounds):
            with page.expect_response("**/api/v1/traffic?*"):
                page.clock.run_for(10_000)
        session.send("HeapProfiler.collectGarbage")
        used: int = session.send("Runtime.getHeapUsage")["usedSize"]
        return used

    heap_after(3)
    before = heap_after(3)
    assert heap_after(15) < before + 1_000_000


def test_where_nobody_reports_it_says_what_to_do(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(GOOD)
    with plane_thread(tmp_path) as plane:
        plane.connect("web-1")
        for page in looking(chromium, plane.url):
            go(page, "#/traffic")
            assert "no proxy reports traffic: run Envoys by mesh-pilot proxy" in shown(page)
            assert page.locator(".graph").count() == 0
            go(page, "#/services")
            assert "calls a second" not in shown(page)


def test_where_traffic_is_off_it_says_so(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(GOOD)
    with plane_thread(tmp_path, traffic_reports=None) as plane:
        plane.connect("web-1")
        for page in looking(chromium, plane.url):
            for view in ("#/traffic", f"#/services/shop/{HOST}"):
                go(page, view)
                assert "traffic is off by a setting" in shown(page)
                assert page.locator(".graph").count() == 0
            go(page, "#/traffic/proxies")
            assert "No proxy has connected, or traffic is off." in shown(page)


def test_a_mesh_with_one_namespace_shows_its_services_at_once_and_odd_names_as_text(
    chromium: Any, tmp_path: Path
) -> None:
    (tmp_path / "mesh.yaml").write_text(GOOD)
    odd = "we\u200bb<img src=x onerror=\"document.title='gone'\">"
    with plane_thread(tmp_path) as plane:
        traffic = plane.plane.state.traffic
        assert traffic is not None
        calling = row("outbound|9080||ratings.shop.svc.cluster.local", requests=5, errors=1)
        Planted(traffic.table).plant((reporting("web-1.shop", odd), [calling]), slots=2)
        for page in looking(chromium, plane.url):
            go(page, "#/traffic")
            assert boxes(page)[1] == "ratings" or boxes(page)[0] == "ratings"
            assert "\\u{200b}" in page.locator("#calls-table").inner_text()
            assert page.locator("main img").count() == 0 and page.title().endswith("· mesh-pilot")
            assert "There is nothing to compare with yet" in shown(page)


def test_a_revision_after_which_calls_fail_more_often_is_marked_with_words(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(GOOD)
    edge = EdgeOutcome("web", "shop", "ratings.shop.svc.cluster.local:9080", "requests", 400, 2, 410, 84, "worse")
    worse = RevisionTraffic(1, "worse", 31, (edge,), 2, 4000, 12, 4080, 219, 10, 4, 7, True)
    with plane_thread(tmp_path) as plane:
        plane.plane.state.revisions.traffic[1] = worse
        for page in looking(chromium, plane.url):
            for view in ("#/", "#/changes"):
                go(page, view)
                badge = page.locator(".change .outcome .badge.bad")
                assert badge.inner_text() == "worse after"
            page.locator(".change a[data-entry]").last.click()
            page.get_by_text("Traffic after it").wait_for()
            found = shown(page)
            assert "Worse on 2 of 31 edges. 12 of 4,000 failed (0.3 %) in 10 minutes before" in found
            assert "219 of 4,080 failed (5.4 %) in 4 minutes after. Until revision 7" in found
            assert "84 of 410 failed (20 %)" in page.get_by_role("table", name="Calls that got worse").inner_text()


def test_a_proxy_has_what_it_calls(chromium: Any, tmp_path: Path) -> None:
    with plane_thread(tmp_path) as plane:
        traffic = plane.plane.state.traffic
        assert traffic is not None
        calling = row("outbound|9080||ratings.test", requests=50, errors=10, timeouts=10)
        Planted(traffic.table).plant((reporting("web-1.shop", address="10.9.9.9"), [calling]), slots=2)
        plane.connect("web-1")
        for page in looking(chromium, plane.url):
            go(page, "#/proxies/web-1.shop")
            page.get_by_text("What it calls").click()
            line = page.get_by_role("table", name="Calls").locator("tbody tr")
            assert line.inner_text().startswith("ratings.test :9080")
            assert "80 %" in line.inner_text() and "20 timeouts" in line.inner_text()
