"""The web page: what a person wants to know at a glance, in plain HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin: 1.6em 0 .3em }
table { border-collapse: collapse; width: 100% } th { text-align: left; font-weight: 600 }
td, th { padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere }
.good { color: #17692f } .bad { color: #a3160f } .quiet { color: #777 }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #ddd } td, th { border-color: #333 } a { color: #8ab4f8 }
  .good { color: #6fcf8b } .bad { color: #ff8a80 }
}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of parts made by the functions below. It loads itself anew every five seconds."""
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def line(text: str, mood: str = "") -> str:
    """A paragraph; ``mood`` is good, bad, quiet or nothing."""
    return f'<p class="{mood}">{escape(text)}</p>'


def links(targets: Sequence[str]) -> str:
    return "<p>" + " &middot; ".join(f'<a href="{escape(t)}">{escape(t)}</a>' for t in targets) + "</p>"


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> str:
    """A table under a heading, or ``nothing`` where it has no rows. A cell that starts with ``!`` is shown as bad."""
    head = f"<h2>{escape(title)}</h2>\n"
    if not rows:
        return head + line(nothing, "quiet")
    cells = "".join(f"<th>{escape(h)}</th>" for h in headers)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"{head}<table><tr>{cells}</tr>\n{body}</table>"


def _cell(text: str) -> str:
    mood = ' class="bad"' if text.startswith("!") else ""
    return f"<td{mood}>{escape(text.removeprefix('!'))}</td>"
