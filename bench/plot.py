"""Measurements as one SVG that needs nothing else: a bar for each time, and one for each CPU, grouped by mesh."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.report import Measurement, middle

_LEFT, _BAR, _ROW, _WIDTH = 330, 260, 20, 960
_COLOURS = ("#3b6ea8", "#c1703c", "#4d8f58", "#8a5a9e")


def svg(measurements: Sequence[Measurement]) -> str:
    """Times on the left, the server's CPU on the right; each column has its own scale, and each bar its number."""
    rows = middle(measurements)
    servers = list(dict.fromkeys(m.server for m in rows))
    longest = max([m.last for m in rows] + [1e-9])
    most = max([m.cpu for m in rows] + [1e-9])
    y, parts = 40, list[str]()
    parts.append(_text(_LEFT, 24, "time to the last client, s", "start", bold=True))
    parts.append(_text(_LEFT + _BAR + 60, 24, "server CPU, s", "start", bold=True))
    title = ""
    for m in rows:
        case = f"{m.mesh}; {m.clients:,} clients"
        if case != title:
            title = case
            y += 10
            parts.append(_text(8, y + 13, case, "start", bold=True))
            y += _ROW
        colour = _COLOURS[servers.index(m.server) % len(_COLOURS)]
        name = f"{m.event}, {m.variant}" + (f", {m.server}" if len(servers) > 1 else "")
        parts.append(_text(_LEFT - 8, y + 13, name, "end"))
        parts += _bar(_LEFT, y, m.last / longest * _BAR, f"{m.last:.3f}", colour)
        parts += _bar(_LEFT + _BAR + 60, y, m.cpu / most * _BAR, f"{m.cpu:.3f}", colour)
        y += _ROW
    height = y + 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
    )
    style = '<style>text{font:12px sans-serif;fill:#222}</style><rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, style, *parts, "</svg>"]) + "\n"


def _bar(x: float, y: float, width: float, label: str, colour: str) -> list[str]:
    bar = f'<rect x="{x}" y="{y + 3}" width="{max(width, 1):.1f}" height="{_ROW - 6}" fill="{colour}"/>'
    return [bar, _text(x + width + 4, y + 13, label, "start")]


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
