"""What an operator comes for, in Debian's Firefox: what works in one browser alone is found here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
import pytest

from tests.browser import shop
from tests.browser.test_pictures import QUESTION, open_shop, start_rollout
from tests.support.browser import PlaneThread
from tests.support.envoy import eventually, http_client
from tests.support.firefox import Firefox, firefox

pytestmark = [pytest.mark.process, pytest.mark.slow]


@attrs.frozen
class Task:
    """A question, the clicks on links from Now to its answer, and what that has in it."""

    clicks: tuple[str, ...]
    answer: tuple[str, ...]
    view: str = "#/"


TASKS = {
    "which proxies are not in sync": Task(("Proxies",), ("Not in sync", "old-1.shop", "ServiceEntry/shop/legacy")),
    "what changed, and who refused it": Task((), ("Last hour", "ServiceEntry/shop/legacy", "refused by old-")),
    "where a request goes": Task((), (f"forwarded to cart.{shop.DOMAIN}:8080",), QUESTION),
    "which service has no healthy endpoint": Task(("Traffic",), ("billing.service.consul", "down", "empty")),
    "which calls got worse": Task(("Traffic", "Calls", "shop"), ("ledger.shop.mesh.internal", "80 %", "worse")),
    "which certificate expires next": Task((), ("root",)),
    "how far the rollout is": Task(("Changes",), (" of 3", "VirtualService/shop/reviews")),
    "how to undo it": Task((), ("mesh-pilot rollout abort",)),
    "what a gateway exposes": Task(("shop/edge",), ("path begins with /cart", "expires"), "#/gateways"),
    "why a host is not found": Task(("api",), ("Referenced gateway not found", "egde"), f"#/search?q={shop.LATE}"),
    "an object by a part of its name": Task((), ("DestinationRule in shop",), "#/search?q=revie"),
}


async def says(url: str, words: str) -> bool:
    """True once Now has these words in it."""
    async with http_client(url) as client:
        return words in (await client.get("/api/v1/now")).text


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneThread]:
    folder = tmp_path_factory.mktemp("ill")
    with open_shop(folder, is_ill=True) as found:
        found.run(eventually, partial(says, found.url, "withheld"))
        start_rollout(found, folder / "config")
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with firefox(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("task", TASKS)
def test_firefox_shows(browser: Firefox, plane: PlaneThread, task: str) -> None:
    own = TASKS[task]
    browser.open(f"{plane.url}/{own.view}")
    browser.wait("document.querySelector('main')?.dataset.view === arg[0]", own.view)
    for text in own.clicks:
        link = f"//a[normalize-space(.) = '{text}']"
        browser.wait("document.evaluate(arg[0], document, null, 9).singleNodeValue", link)
        browser.click_at(link)
    for text in own.answer:
        browser.wait("document.querySelector('main').innerText.includes(arg[0])", text)
    assert browser.errors(plane.url) == []


def test_firefox_stays_live_and_follows_the_keys(browser: Firefox, plane: PlaneThread) -> None:
    browser.open(f"{plane.url}/#/")
    browser.wait("document.querySelector('.pulse.live')")
    browser.press("/")
    browser.wait("document.activeElement.id === 'search'")
    browser.press(*"ratings")
    browser.wait("location.hash === '#/search?q=ratings'")
    plane.connect("late-1")
    browser.open(f"{plane.url}/#/proxies?q=late")
    browser.wait("document.querySelector('main').innerText.includes('late-1.shop')")
    plane.leave("late-1")
    browser.wait("!document.querySelector('main tbody')?.innerText.includes('late-1.shop')")
    assert browser.errors(plane.url) == []
