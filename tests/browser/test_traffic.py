"""Traffic: services by health, gateways and what they expose, the mesh as a picture, and the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import shop
from tests.browser.looking import arrived, go, looking, shown
from tests.browser.test_page import Given
from tests.support.browser import PlaneThread, plane_thread
from tests.support.certificates import write_certificates
from tests.support.credentials import write_credential

pytestmark = [pytest.mark.process, pytest.mark.slow]

SERVICE = f"#/services/shop/{shop.REVIEWS}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    """A shop with faults."""
    folder, secrets = tmp_path_factory.mktemp("config"), tmp_path_factory.mktemp("secrets")
    (folder / "shop.yaml").write_text(shop.objects())
    (folder / "faults.yaml").write_text(shop.FAULTS)
    certificates = write_certificates(tmp_path_factory.mktemp("made"), "shop", dns=(shop.FRONT,))
    write_credential(secrets / "shop", "shop", certificates)
    registry = Given(*shop.registry(is_ill=True))
    registry.name = "consul"
    with plane_thread(folder, more_sources=[registry], quarantine=None, secrets_dir=secrets) as found:
        found.connect("web-1")
        yield found


@pytest.fixture
def page(chromium: Any, plane: PlaneThread) -> Iterator[Any]:
    yield from looking(chromium, plane.url)


def rows(page: Any) -> list[str]:
    """The names in a list, in its order."""
    return [each.inner_text() for each in page.locator("main tbody a[data-entry]").all()]


def test_services_without_a_healthy_endpoint_are_one_click_away(page: Any) -> None:
    go(page, "#/")
    page.get_by_role("link", name="Traffic", exact=True).click()
    arrived(page, "#/services")
    first, second = page.locator("main tbody tr").all()[:2]
    assert "billing.service.consul" in first.inner_text() and "down" in first.inner_text()
    assert "none of 2 endpoints is healthy" in first.inner_text()
    assert "mailer.service.consul" in second.inner_text() and "empty" in second.inner_text()
    page.get_by_role("link", name="down 1").click()
    arrived(page, "#/services?state=down")
    assert rows(page) == ["billing.service.consul"]


def test_what_gateways_expose_is_two_clicks_away(page: Any) -> None:
    go(page, "#/")
    page.get_by_role("link", name="Traffic", exact=True).click()
    page.get_by_role("link", name="Gateways", exact=True).click()
    arrived(page, "#/gateways")
    secure = page.locator("main tbody tr", has_text="443").inner_text()
    assert "shop.example.com" in secure and f"cart.{shop.DOMAIN}" in secure and "certificate" in shown(page)


def test_a_filter_is_seen_and_can_be_taken_away(page: Any) -> None:
    go(page, "#/services")
    page.locator("tbody tr", has_text="billing").get_by_role("link", name="default").click()
    arrived(page, "#/services?namespace=default")
    assert len(rows(page)) == 3
    page.get_by_role("link", name="Remove the filter namespace default").click()
    arrived(page, "#/services")
    assert len(rows(page)) == len(shop.COUNTS) + 4


def test_a_service_leads_to_its_gateway_its_clients_its_changes_and_the_question_why(page: Any) -> None:
    go(page, f"#/services/shop/cart.{shop.DOMAIN}")
    gateways = page.locator(".part", has_text="Gateways that lead to it")
    assert "shop/edge as shop.example.com by VirtualService/shop/front" in " ".join(gateways.inner_text().split())
    targets = [each.get_attribute("href") for each in page.locator("main a").all()]
    assert "#/gateways/shop/edge" in targets
    assert "#/proxies/web-1.shop" in targets
    assert "#/changes?object=VirtualService%2Fshop%2Fcart" in targets
    assert f"#/ask?proxy=web-1.shop&to=cart.{shop.DOMAIN}%3A8080%2F" in targets
    assert "#/objects/VirtualService/shop/cart" in targets


def test_a_gateway_shows_the_way_from_its_port_to_a_service_and_its_certificate(page: Any) -> None:
    go(page, "#/gateways")
    assert "no connected proxy serves it" in shown(page)
    page.get_by_role("link", name="shop/edge").first.click()
    server = page.locator(".part", has_text="Port 443")
    server.wait_for()
    text = " ".join(server.inner_text().split())
    assert "certificate shop, expires in" in text
    assert "shop.example.com by VirtualService/shop/front" in text
    assert f"path begins with /cart → cart.{shop.DOMAIN} 2 of 2 healthy" in text
    assert "Requests are sent to HTTPS." in page.locator(".part", has_text="Port 80").inner_text()


def test_an_object_leads_to_the_service_that_it_is_about_and_to_its_revisions(page: Any) -> None:
    go(page, "#/objects/VirtualService/shop/reviews")
    targets = [each.get_attribute("href") for each in page.locator("main a").all()]
    assert SERVICE in targets
    assert "#/changes?object=VirtualService%2Fshop%2Freviews" in targets


def test_an_error_of_an_analyzer_is_the_verdict_on_an_object(page: Any) -> None:
    go(page, "#/objects/VirtualService/shop/search")
    verdict = page.locator(".verdict.bad")
    assert "faulty" in verdict.inner_text()
    assert "Referenced host+subset in destinationrule not found" in verdict.inner_text()
    assert "Add a DestinationRule" in page.locator(".findings").inner_text()


def test_a_service_is_one_box_of_the_mesh_with_the_shares_of_its_subsets(page: Any) -> None:
    go(page, "#/mesh")
    boxes = page.locator(".box", has_text="reviews.shop")
    assert boxes.count() == 1
    shares = [each.text_content() for each in boxes.locator("text.share").all()]
    assert shares == ["v1 90 %", "v2 10 %"]
    assert page.locator(".box.unknown > text").text_content() == "shop/egde", "a gateway that does not exist"
    assert page.locator(".graph a[href='#/gateways/shop/edge']").count() == 1
    page.locator(f".graph a[href='{SERVICE}']").click()
    arrived(page, SERVICE)
