"""The page at four widths, light and dark, well and ill: nothing is cut, and nothing is wider than the window.

With SCREENSHOTS, a folder, a picture of each goes there, to be looked at, and those of the manual are made again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.safety.state.settings import StateSettings
from tests.browser import shop
from tests.browser.looking import go, looking
from tests.browser.test_page import Given
from tests.support.browser import PlaneThread, plane_thread
from tests.support.certificates import write_certificates
from tests.support.credentials import write_credential
from tests.support.curious import curious
from tests.support.traffic_counts import Planted

pytestmark = [pytest.mark.process, pytest.mark.slow]

MANUAL = Path(__file__).parents[2] / "docs" / "page"
MOST_BYTES = 80_000

SIZES = {390: 844, 768: 1024, 1280: 800, 2560: 1300}
SCHEMES = ("light", "dark")

QUESTION = f"#/ask?proxy=edge-1.shop&to=https%3A%2F%2F{shop.FRONT}%2Fcart"
VIEWS = {
    "now": "#/",
    "services": "#/services",
    "service": f"#/services/shop/{shop.REVIEWS}",
    "calls": "#/traffic?namespace=shop",
    "reporters": "#/traffic/proxies",
    "gateways": "#/gateways",
    "gateway": "#/gateways/shop/edge",
    "mesh": "#/mesh",
    "proxies": "#/proxies",
    "proxy": "#/proxies/web-1.shop",
    "changes": "#/changes",
    "ask": QUESTION,
    "objects": "#/objects",
    "object": "#/objects/VirtualService/shop/reviews",
    "search": "#/search?q=re",
}


@attrs.frozen
class Shot:
    """A picture of the manual."""

    view: str
    is_ill: bool = False
    width: int = 1280
    scheme: str = "light"


PICTURES = {
    "now": Shot("now", is_ill=True),
    "phone": Shot("now", is_ill=True, width=390, scheme="dark"),
    "services": Shot("services", is_ill=True),
    "service": Shot("service"),
    "calls": Shot("calls", is_ill=True),
    "gateway": Shot("gateway", scheme="dark"),
    "mesh": Shot("mesh"),
    "proxies": Shot("proxies", is_ill=True),
    "changes": Shot("changes", is_ill=True),
    "ask": Shot("ask"),
}
"""Those of the manual, by their files' names."""

CUT = """() => {
  const root = document.documentElement;
  const found = root.scrollWidth > innerWidth ? [`the page is ${root.scrollWidth} wide`] : [];
  const scrolls = ".graph, pre, .command code, .unseen, .table, [aria-hidden=true], datalist, .brand b, .skip, .menu";
  for (const each of document.querySelectorAll("main *, header *")) {
    if (each.closest(scrolls) || !each.textContent.trim() || each.namespaceURI.endsWith("svg")) continue;
    const { left, right, width } = each.getBoundingClientRect();
    if (width && (left < -1 || right > innerWidth + 1)) found.push(`outside: ${each.outerHTML.slice(0, 120)}`);
    const hides = getComputedStyle(each).overflowX !== "visible";
    if (hides && each.scrollWidth > each.clientWidth + 1) found.push(`cut: ${each.outerHTML.slice(0, 120)}`);
  }
  return found;
}"""
"""What is cut, or beyond the edge of the window."""


@contextmanager
def open_shop(folder: Path, *, is_ill: bool) -> Iterator[PlaneThread]:
    """A shop with its proxies. An ill one has a fault in each place, and a rollout that runs."""
    config = folder / "config"
    config.mkdir()
    (config / "shop.yaml").write_text(shop.objects())
    write_credential(folder / "secrets" / "shop", "shop", write_certificates(folder, "shop", dns=(shop.FRONT,)))
    registry = Given(*shop.registry(is_ill=is_ill))
    registry.name = "consul"
    more = {"secrets_dir": folder / "secrets", "state": StateSettings(folder=folder / "state")}
    with plane_thread(config, more_sources=[registry], **more) as plane:
        address = plane.plane.addresses.grpc
        for number, name in enumerate(("web", "cart", "catalog", "checkout", "ratings"), 1):
            plane.start(curious, address, EnvoyNode(f"{name}-1", "shop", f"10.1.{number}.1", labels={"app": name}))
        edge = EnvoyNode("edge-1", "shop", "10.9.0.1", type=NodeType.ROUTER, labels={"app": "edge"})
        plane.start(curious, address, edge)
        traffic = plane.plane.state.traffic
        assert traffic is not None
        shop.plant(Planted(traffic.table), is_ill=is_ill)
        if is_ill:
            for number in (1, 2):
                old = EnvoyNode(f"old-{number}", "shop", f"10.8.0.{number}", labels={"app": "old"})
                plane.start(curious, address, old, refuses=shop.REFUSAL)
            plane.connect("mail-1")
            plane.leave("mail-1")
            (config / "faults.yaml").write_text(shop.FAULTS)
            (config / "legacy.yaml").write_text(shop.LEGACY)
        yield plane


def start_rollout(plane: PlaneThread, config: Path) -> None:
    """Give the first step of a rollout a change of the reviews' routes."""
    rollouts = plane.plane.state.rollouts
    assert rollouts is not None

    async def arm() -> None:
        plan = RolloutPlan(steps=(20.0, 50.0, 100.0))
        rollouts.order(lambda progress: progress.arm(plan, trio.current_time()), "start")

    plane.run(arm)
    (config / "shop.yaml").write_text(shop.objects().replace("timeout: 5s", "timeout: 3s"))


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    with open_shop(tmp_path_factory.mktemp("well"), is_ill=False) as plane:
        yield plane


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[PlaneThread]:
    folder = tmp_path_factory.mktemp("ill")
    with open_shop(folder, is_ill=True) as plane:
        for page in looking(chromium, plane.url):
            go(page, "#/")
            page.locator(".cause", has_text="withheld").wait_for()
            start_rollout(plane, folder / "config")
            page.get_by_text("Rollout running").wait_for()
        yield plane


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("state", ["well", "ill"])
def test_nothing_is_cut(request: pytest.FixtureRequest, chromium: Any, state: str, width: int, scheme: str) -> None:
    plane = request.getfixturevalue(state)
    folder = os.environ.get("SCREENSHOTS")
    options = {"viewport": {"width": width, "height": SIZES[width]}, "color_scheme": scheme}
    found = {}
    for page in looking(chromium, plane.url, **options):
        for name, view in VIEWS.items():
            go(page, view)
            page.wait_for_function("() => !document.querySelector('main .skeleton')")
            found[name] = page.evaluate(CUT)
            if folder:
                page.screenshot(path=Path(folder) / f"{name}-{state}-{width}-{scheme}.png", full_page=width < 500)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("name", PICTURES)
def test_the_manual_has_pictures_of_this_page(request: pytest.FixtureRequest, chromium: Any, name: str) -> None:
    shot, file = PICTURES[name], MANUAL / f"{name}.webp"
    if os.environ.get("SCREENSHOTS"):
        plane = request.getfixturevalue("ill" if shot.is_ill else "well")
        options = {"viewport": {"width": shot.width, "height": SIZES[shot.width]}, "color_scheme": shot.scheme}
        for page in looking(chromium, plane.url, **options):
            go(page, VIEWS[shot.view])
            page.wait_for_function("() => !document.querySelector('main .skeleton')")
            take(page, file)
    assert file.stat().st_size < MOST_BYTES
    pages = (MANUAL.parent / "page.md", MANUAL.parents[1] / "README.md")
    assert any(f"page/{file.name}" in page.read_text(encoding="utf-8") for page in pages)


def take(page: Any, file: Path) -> None:
    """A picture as WebP: a third of the bytes of a PNG, and as sharp."""
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 75})
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(base64.b64decode(taken["data"]))
