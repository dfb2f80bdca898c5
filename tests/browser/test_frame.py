"""The frame of the page, whatever the view: its age, its keys, its theme, who is there, old browsers, old addresses."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api import events
from tests.browser.looking import arrived, go, looking, shown
from tests.browser.mesh import BROKEN, GOOD, HOST
from tests.support.browser import PlaneThread, plane_thread

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOKEN = "a-token-of-thirty-characters-or-so"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("config")
    (found / "mesh.yaml").write_text(GOOD)
    return found


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[PlaneThread]:
    with plane_thread(folder) as found:
        for number in range(30):
            found.connect(f"web-{number:02}")
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    yield from looking(chromium, plane.url)


def test_all_turns_grey_when_the_plane_has_not_answered_for_ten_seconds(page: Any) -> None:
    """A plane that hangs: it takes connections, and says nothing."""
    page.clock.install()
    page.route("**/api/v1/events", lambda route: None)
    go(page, "#/proxies")
    assert page.locator("html[data-old]").count() == 0
    assert page.locator(".pulse.live").count() == 1
    page.clock.fast_forward(11_000)
    page.locator("html[data-old] .pulse.old").wait_for()
    assert "has not answered since" in page.locator("p.notice").inner_text()
    assert "web-00.shop" in shown(page) or "30" in shown(page), "what was shown stays"
    page.unroute("**/api/v1/events")
    page.get_by_role("link", name="Changes", exact=True).click()
    page.locator("html:not([data-old]) .pulse.live").wait_for()
    assert page.locator("p.notice").inner_text() == ""


def test_an_answer_that_fails_is_asked_for_again_by_itself(page: Any) -> None:
    page.route("**/api/v1/history?*", lambda route: route.abort())
    go(page, "#/changes")
    assert "does not answer" in page.get_by_role("alert").inner_text()
    page.unroute("**/api/v1/history?*")
    page.locator("h1", has_text="Changes").wait_for()


def test_the_fifty_first_viewer_sees_changes_too(
    chromium: Any, plane: PlaneThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_CLIENTS", 1)
    with ExitStack() as stack:
        first = stack.enter_context(urllib.request.urlopen(f"{plane.url}/api/v1/events"))
        assert first.readline()
        for page in looking(chromium, plane.url):
            go(page, "#/")
            try:
                (folder / "broken.yaml").write_text(BROKEN)
                page.locator(".cause", has_text="ServiceEntry/shop/broken").wait_for()
                assert page.locator(".pulse.live").count() == 1
            finally:
                (folder / "broken.yaml").unlink()
            page.locator(".cause", has_text="ServiceEntry/shop/broken").wait_for(state="detached")


def test_a_browser_of_2022_shows_the_page(chromium: Any, plane: PlaneThread) -> None:
    for page in looking(chromium, plane.url):
        page.add_init_script("delete AbortSignal.any; delete AbortSignal.timeout;")
        go(page, "#/proxies")
        page.locator("h1", has_text="Proxies").wait_for()
        assert "30 sidecars" in shown(page)


def test_a_plane_that_was_restarted_is_read_anew_at_the_same_revision(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(GOOD)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    with plane_thread(tmp_path) as first:
        address, url = first.plane.addresses.http, first.url
        pages = looking(chromium, url)
        page = next(pages)
        go(page, "#/")
        page.locator(".cause", has_text="ServiceEntry/shop/broken").wait_for()
        page.evaluate("window.stays = true")
    (tmp_path / "broken.yaml").unlink()
    with plane_thread(tmp_path, http_addr=address) as second:
        page.locator(".cause", has_text="ServiceEntry/shop/broken").wait_for(state="detached")
        assert page.evaluate("window.stays") is True
        assert second.plane.state.world.revision == 1
        assert next(pages, None) is None


def test_a_revoked_token_ends_the_session_at_once(chromium: Any, tmp_path: Path) -> None:
    config, tokens = tmp_path / "config", tmp_path / "tokens"
    config.mkdir()
    tokens.write_text(f"view {TOKEN} me\n")
    with plane_thread(config, http_addr="0.0.0.0:0", access=AccessSettings(token_file=tokens)) as plane:
        url = f"http://127.0.0.1:{plane.plane.addresses.http.rpartition(':')[2]}"
        for page in looking(chromium, url):
            log_in(page, "#/")
            page.locator(".pulse.live").wait_for()
            tokens.write_text("view another-token-of-thirty-characters other\n")
            page.wait_for_url("**/login?next=*")


def test_a_deep_link_survives_the_login_and_a_logout_ends_the_session(chromium: Any, tmp_path: Path) -> None:
    config, tokens = tmp_path / "config", tmp_path / "tokens"
    config.mkdir()
    (config / "mesh.yaml").write_text(GOOD)
    tokens.write_text(f"view {TOKEN} alice\n")
    with plane_thread(config, http_addr="0.0.0.0:0", access=AccessSettings(token_file=tokens)) as plane:
        url = f"http://127.0.0.1:{plane.plane.addresses.http.rpartition(':')[2]}"
        for page in looking(chromium, url):
            deep = "#/objects/VirtualService/shop/reviews"
            log_in(page, deep)
            arrived(page, deep)
            page.locator(".menu summary").click()
            assert "alice" in page.locator(".menu").inner_text() and "role view" in page.locator(".menu").inner_text()
            page.get_by_role("button", name="Log out").click()
            page.wait_for_url("**/login")
            page.goto("/")
            page.locator("input[type=password]").wait_for()


def log_in(page: Any, view: str) -> None:
    page.goto(f"/{view}")
    page.locator("input[type=password]").fill(TOKEN)
    assert page.evaluate("getComputedStyle(document.querySelector('main')).borderTopStyle") == "solid", "it is styled"
    page.keyboard.press("Enter")
    arrived(page, view)


def test_the_first_paint_is_the_page_and_the_first_load_is_small(chromium: Any, plane: PlaneThread) -> None:
    for page in looking(chromium, plane.url):
        asked: list[Any] = []
        page.on("requestfinished", lambda request, into=asked: into.append((request.url, request.sizes())))
        page.route("**/api/v1/**", lambda route: None)
        page.goto("/#/proxies", wait_until="load")
        assert [each.inner_text() for each in page.locator(".places a").all()] == [
            *("Now", "Traffic", "Proxies", "Changes", "Ask")
        ]
        page.unroute("**/api/v1/**")
        asked.clear()
        page.goto("about:blank")
        go(page, "#/")
        sizes = {url: each["responseBodySize"] + each["responseHeadersSize"] for url, each in asked}
        assert sum(sizes.values()) < 120_000, sizes
        assert not any("openapi" in url for url in sizes)


def test_old_addresses_lead_on(page: Any) -> None:
    for old, new in {
        "#/history": "#/changes",
        "#/history/1": "#/changes/1",
        "#/why?proxy=web-00.shop": "#/ask?proxy=web-00.shop",
    }.items():
        page.goto(f"/{old}")
        arrived(page, new)


def test_the_keyboard_reaches_everything(page: Any) -> None:
    go(page, "#/")
    places = {"t": "Services", "p": "Proxies", "c": "Changes", "m": "Mesh", "b": "Objects", "s": "Services"}
    for letter, title in places.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.locator("main h1", has_text=title).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("ratings")
    page.locator("main h1", has_text="ratings").wait_for()
    page.locator("main a[data-entry]").first.wait_for()
    assert page.evaluate("document.activeElement.id") == "search", "typing continues while results come"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.entry") == ""
    page.keyboard.press("Enter")
    page.locator("main h1", has_text="ratings.shop.svc.cluster.local").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("web")
    page.wait_for_function("() => document.getElementById('search').value === 'web'")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.locator("main h1", has_text="Services").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    focus = "getComputedStyle(document.activeElement)"
    assert page.evaluate("document.activeElement.textContent") == HOST
    assert page.evaluate(f"{focus}.outlineStyle + {focus}.outlineWidth") == "solid3px"
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")


def test_back_leads_to_the_same_row(chromium: Any, plane: PlaneThread) -> None:
    for page in looking(chromium, plane.url, viewport={"width": 1280, "height": 400}):
        go(page, "#/proxies?state=in+sync")
        row = page.get_by_role("link", name="web-25.shop")
        row.scroll_into_view_if_needed()
        before = page.evaluate("scrollY")
        assert before > 0
        row.click()
        arrived(page, "#/proxies/web-25.shop")
        assert page.evaluate("scrollY") == 0
        page.go_back()
        arrived(page, "#/proxies?state=in+sync")
        page.wait_for_function("y => scrollY === y", arg=before)
        assert page.evaluate("document.activeElement.textContent") == "web-25.shop"


def test_filters_are_seen_kept_in_the_address_and_taken_away(page: Any) -> None:
    go(page, "#/proxies?state=in+sync&namespace=shop&sort=-proxy")
    rows = page.locator("main tbody tr")
    assert "web-29.shop" in rows.first.inner_text()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("name")
    page.get_by_role("searchbox", name="Filter proxies").fill("web-1")
    page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 10")
    assert "q=web-1" in page.url and "namespace=shop" in page.url
    page.get_by_role("link", name="Remove the filter namespace shop").click()
    page.wait_for_function("() => !location.hash.includes('namespace')")
    page.locator("th a", has_text="name").click()
    page.wait_for_function("() => document.querySelector('main tbody tr').textContent.includes('web-10')")


def test_a_word_explains_itself(page: Any) -> None:
    go(page, "#/changes/1")
    page.get_by_role("button", name="Revision").focus()
    tip = page.get_by_role("tooltip")
    assert "state of the whole mesh" in tip.inner_text()
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")


def test_dark_and_light_follow_the_system_unless_somebody_chose(chromium: Any, plane: PlaneThread) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(16, 20, 24)", "rgb(245, 246, 248)"
    for scheme, expected in (("dark", dark), ("light", light)):
        for page in looking(chromium, plane.url, color_scheme=scheme):
            go(page, "#/")
            assert page.evaluate(ground) == expected
            page.keyboard.press("t")
            assert page.evaluate(ground) == light
            page.keyboard.press("t")
            assert page.evaluate(ground) == dark
            page.reload()
            page.wait_for_selector("html.app")
            assert page.evaluate(ground) == dark


def test_without_scripts_the_page_says_where_else_to_ask(chromium: Any, plane: PlaneThread) -> None:
    for page in looking(chromium, plane.url, java_script_enabled=False):
        page.goto("/")
        assert "This page needs JavaScript" in page.locator("main").inner_text()


def test_names_never_break_inside_and_nothing_scrolls_sideways(chromium: Any, plane: PlaneThread) -> None:
    for width in (390, 768, 1280, 2560):
        for page in looking(chromium, plane.url, viewport={"width": width, "height": 800}):
            for view in ("#/", "#/proxies", "#/proxies?state=in+sync", "#/proxies/web-00.shop", "#/changes"):
                go(page, view)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, view)
                assert page.evaluate("document.querySelector('header').offsetHeight") < 60, "a header is one line"
            go(page, "#/proxies?state=in+sync")
            heights = page.evaluate("[...document.querySelectorAll('tbody a bdi')].map(each => each.offsetHeight)")
            assert max(heights) < 30


def test_what_cannot_be_seen_and_what_looks_like_something_else_is_an_escape(chromium: Any, tmp_path: Path) -> None:
    with plane_thread(tmp_path) as plane:
        for name in ("cart-1", "cart\u200b-1", "c\u0430rt-1"):
            plane.connect(name)
        for page in looking(chromium, plane.url):
            go(page, "#/proxies?state=in+sync")
            names = {each.inner_text() for each in page.locator("main tbody td:first-child").all()}
            assert names == {"cart-1.shop", "cart\\u{200b}-1.shop", "c\\u{430}rt-1.shop"}


def test_the_events_of_the_api_have_a_beat(plane: PlaneThread) -> None:
    with urllib.request.urlopen(f"{plane.url}/api/v1/events") as stream:
        for line in stream:
            if line.startswith(b"event: beat"):
                break
        assert {"at", "revision", "boot"} <= set(json.loads(next(stream).removeprefix(b"data: ")))
