"""How tests look at the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDTH, HEIGHT = 1280, 800


def looking(chromium: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of the plane at this address; what the browser complains of fails the test."""
    context = chromium.new_context(base_url=url, **{"viewport": {"width": WIDTH, "height": HEIGHT}, **options})
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    yield page
    context.close()
    assert [each for each in complaints if not is_expected(each)] == []


def is_expected(complaint: str) -> bool:
    """True for what a browser says of an answer that the page shows in words."""
    return complaint.startswith("Failed to load resource") or "net::ERR_" in complaint


def go(page: Any, view: str) -> None:
    """Show a view, until it is there."""
    page.goto(f"/{view}")
    arrived(page, view)


def arrived(page: Any, view: str) -> None:
    """Wait for a view that somebody is on the way to."""
    page.wait_for_function(
        "view => { const main = document.getElementById('main');"
        " return main && main.dataset.view === view && !main.hasAttribute('aria-busy') }",
        arg=view,
    )


def shown(page: Any) -> str:
    """The text of the view, on one line."""
    return " ".join(page.locator("main").inner_text().split())
