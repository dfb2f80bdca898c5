"""Ask: questions completed from what is connected, answers that lead on, and a search over all that has a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import NodeType
from tests.browser import shop
from tests.browser.looking import arrived, go, looking, shown
from tests.support.browser import PlaneThread, plane_thread
from tests.support.curious import curious

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    folder = tmp_path_factory.mktemp("config")
    (folder / "shop.yaml").write_text(shop.objects().replace("tls: {httpsRedirect: true}", ""))
    (folder / "faults.yaml").write_text(shop.FAULTS)
    with plane_thread(folder, quarantine=None) as found:
        address = found.plane.addresses.grpc
        found.start(curious, address, EnvoyNode("web-1", "shop", "10.1.1.1"))
        found.start(curious, address, EnvoyNode("cart-1", "shop", "10.1.2.1", labels={"app": "cart"}))
        edge = EnvoyNode("edge-1", "shop", "10.9.0.1", type=NodeType.ROUTER, labels={"app": "edge"})
        found.start(curious, address, edge)
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    yield from looking(chromium, plane.url)


def choices(page: Any, field: str) -> list[str]:
    """The completions of a field, once there are some."""
    page.wait_for_function("field => document.querySelector(`#choices-${field} option`)", arg=field)
    return [each.get_attribute("value") for each in page.locator(f"#choices-{field} option").all()]


def test_a_question_is_completed_from_what_is_connected(page: Any) -> None:
    go(page, "#/ask")
    page.get_by_label("From the proxy").fill("we")
    assert choices(page, "proxy") == ["web-1.shop"]
    page.get_by_label("To", exact=True).fill("rev")
    assert choices(page, "to") == [f"{shop.REVIEWS}:8080/"]


def test_a_port_that_is_left_out_is_not_invented(page: Any) -> None:
    go(page, "#/ask")
    page.get_by_label("From the proxy").fill("web-1.shop")
    page.get_by_label("To", exact=True).fill(f"{shop.REVIEWS}/x")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text(f"no port given: {shop.REVIEWS} has 8080").wait_for()
    assert "port 80:" not in shown(page) and "declares port 80 " not in shown(page)
    assert page.get_by_label("To", exact=True).input_value() == f"{shop.REVIEWS}/x"
    assert f"mesh-pilot why {shop.REVIEWS}/x --from web-1.shop" in shown(page)


def test_a_host_that_is_not_found_is_told_with_who_has_it_and_why_it_is_not_bound(page: Any) -> None:
    go(page, f"#/ask?proxy=edge-1.shop&to=http%3A%2F%2F{shop.LATE}%3A80%2F")
    story = page.locator(".part", has_text="Answer")
    story.get_by_role("link", name="VirtualService/shop/api").first.wait_for()
    assert "404" in page.locator(".outcome").first.inner_text()
    assert "egde" in story.inner_text()


def test_what_a_request_meets_is_told_up_to_the_proxy_of_its_endpoint(page: Any) -> None:
    go(page, "#/")
    page.get_by_role("link", name="Ask", exact=True).click()
    page.get_by_label("From the proxy").fill("edge-1.shop")
    page.get_by_label("To", exact=True).fill(f"http://{shop.FRONT}/cart")
    page.get_by_role("button", name="Ask").click()
    page.locator(".outcome", has_text=f"forwarded to cart.{shop.DOMAIN}:8080").wait_for()
    page.locator(".hop").get_by_role("link", name="cart-1.shop").wait_for()


def test_search_starts_anew_at_each_slash(page: Any) -> None:
    go(page, "#/search?q=cart")
    page.keyboard.press("/")
    page.keyboard.type("ratings")
    arrived(page, "#/search?q=ratings")
    assert page.locator("main h1").inner_text() == "Search: ratings"


def test_a_search_without_a_hit_says_where_it_looked(page: Any) -> None:
    go(page, "#/search?q=zzz")
    assert "No service, object or proxy has this in its name, hosts, addresses or labels." in shown(page)


def test_an_empty_plane_shows_the_next_step(chromium: Any, tmp_path: Path) -> None:
    with plane_thread(tmp_path) as plane:
        for page in looking(chromium, plane.url):
            go(page, "#/services")
            assert "--config-dir FOLDER" in shown(page)
            go(page, "#/objects")
            assert "--config-dir" in shown(page)
            go(page, "#/ask")
            assert "mesh-pilot token create" in shown(page)
