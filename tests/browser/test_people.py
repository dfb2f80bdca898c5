"""A person logs in at a real issuer with a browser, and the page shows what is theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.ops.access.settings import AccessSettings
from tests.browser.looking import arrived, looking, shown
from tests.support.browser import plane_thread
from tests.support.openid import issuer
from tests.support.planes import SERVICE
from tests.support.ports import free_ports

pytestmark = [pytest.mark.process]


def test_a_person_logs_in_and_sees_their_namespaces_and_logs_out(chromium: Any, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    config = tmp_path / "config"
    config.mkdir()
    (config / "shop.yaml").write_text(SERVICE)
    (config / "bank.yaml").write_text(SERVICE.replace("shop", "bank").replace("reviews", "ledger"))
    with issuer(tmp_path, url) as at:
        (tmp_path / "people").write_text(at.people(url))
        access = AccessSettings(people_file=tmp_path / "people")
        with plane_thread(config, http_addr=f"0.0.0.0:{port}", access=access):
            for page in looking(chromium, url):
                page.route(lambda asked: "127.0.0.1" not in asked, lambda route: route.abort())  # fonts of the issuer's
                deep = "#/objects/ServiceEntry/shop/reviews"
                page.goto(f"/{deep}")
                page.get_by_role("link", name="Log in at").click()
                page.locator("input[name=login]").fill("u-2")
                page.locator("input[name=password]").fill("any")
                page.keyboard.press("Enter")
                page.get_by_role("button", name="Continue").click()
                arrived(page, deep)
                assert page.url == f"{url}/{deep}", "the deep link survives the login"
                page.locator(".menu summary").click()
                menu = page.locator(".menu").inner_text()
                assert "bob@example.com" in menu and "view in cart, edit in shop" in menu and "Debug" not in menu
                page.goto("/#/objects")
                arrived(page, "#/objects")
                assert "reviews" in shown(page) and "ledger" not in shown(page)
                page.goto("/#/objects/ServiceEntry/bank/ledger")
                page.locator(".failed", has_text="this needs view in namespace bank").wait_for()
                page.goto("/#/ask")
                arrived(page, "#/ask")
                assert "asking needs the role view in all of them" in shown(page)
                page.goto("/#/")
                arrived(page, "#/")
                page.locator(".menu summary").click()
                page.get_by_role("button", name="Log out").click()
                page.wait_for_url(f"{at.url}/session/end**")
                page.goto("/")
                page.get_by_role("link", name="Log in at").wait_for()
