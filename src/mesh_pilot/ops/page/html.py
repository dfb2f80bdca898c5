"""HTML of the web page where no script runs. Every list on it is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import islice

import attrs

ROWS = 100
"""Maximum rows of a table."""
CELL_LENGTH = 500
"""Maximum characters of a cell."""


@attrs.frozen
class Cell:
    """A cell of a table with a style or a link."""

    text: str
    mood: str = ""
    """``good``, ``bad``, ``quiet`` or empty: the style."""
    link: str = ""


def moment(at: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def bad(text: str) -> Cell:
    return Cell(text, "bad")


def page(title: str, parts: Iterable[str], *, reload: bool = True, is_app: bool = False) -> str:
    """An HTML page. ``parts`` come from the functions below; with ``reload`` it refreshes every five seconds.

    ``is_app``: the page's modules are loaded, and replace the parts; where no script runs, those stay and refresh.
    """
    body = "\n".join(parts)
    refresh = '<meta http-equiv="refresh" content="5">' if reload else ""
    if is_app:
        refresh = f'<noscript>{refresh}</noscript><script type="module" src="/page/app.js"></script>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        '<link rel="stylesheet" href="/page/style.css"><link rel="icon" href="/page/icon.svg">'
        f'{refresh}</head><body><main id="main"><h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n'
    )


def line(text: str, mood: str = "") -> str:
    """A paragraph; ``mood`` is ``good``, ``bad``, ``quiet`` or empty."""
    return f'<p class="{mood}">{escape(_bounded(text))}</p>'


def links(targets: Sequence[str]) -> str:
    return "<p>" + " &middot; ".join(f'<a href="{escape(t)}">{escape(t)}</a>' for t in targets) + "</p>"


def described_links(targets: Mapping[str, str]) -> str:
    """A list of links with descriptions."""
    rows = "".join(
        f'<tr><td><a href="{escape(t)}">{escape(t)}</a></td><td>{escape(d)}</td></tr>' for t, d in targets.items()
    )
    return f'<div class="table"><table>{rows}</table></div>'


def table(
    title: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    nothing: str,
    *,
    total: int | None = None,
    more: str = "",
) -> str:
    """A table under a heading, or ``nothing`` if it is empty.

    Only the first rows are shown. ``total`` is the number of all rows (default: the length of ``rows``), ``more`` a
    link to all of them.
    """
    if total is None:
        rows = list(rows)
        total = len(rows)
    head = f"<h2>{escape(title)}</h2>\n"
    if not total:
        return head + line(nothing, "quiet")
    cells = "".join(f"<th>{escape(h)}</th>" for h in headers)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in islice(rows, ROWS))
    rest = ""
    if total > ROWS:
        rest = (
            f"\n<p>and {total - ROWS} more"
            + (f': <a href="{escape(more)}">{escape(more)}</a>' if more else "")
            + "</p>"
        )
    return f'{head}<div class="table"><table><tr>{cells}</tr>\n{body}</table></div>{rest}'


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(_bounded(cell))}</td>"
    mood = f' class="{cell.mood}"' if cell.mood else ""
    shown = escape(_bounded(cell.text))
    return f'<td{mood}><a href="{escape(cell.link)}">{shown}</a></td>' if cell.link else f"<td{mood}>{shown}</td>"


def _bounded(text: str) -> str:
    return text if len(text) <= CELL_LENGTH else f"{text[:CELL_LENGTH]}…"
