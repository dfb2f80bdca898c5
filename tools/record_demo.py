"""Records ``mesh-pilot demo`` as the README's picture: ``python -m tools.record_demo``, with Envoy from the extra demo.

The picture, ``docs/demo.svg``, is an SVG that shows each line when the demo printed it, scrolls as a terminal does, and
begins again at the end. It needs no script and loads nothing. Waits are cut to `LONGEST`. A test compares its lines
with what the demo prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from html import escape, unescape
from pathlib import Path

import attrs

TO = Path(__file__).parents[1] / "docs" / "demo.svg"
COLUMNS, ROWS, ROW, CELL, MARGIN = 104, 26, 19, 8.43, 16
LONGEST, PAUSE = 1.6, 6.0
"""Seconds: the longest wait between two lines, and for how long the end stays."""
COMMAND = "mesh-pilot demo"

STYLES = (
    (re.compile(r"^(\d+\. .*|\$ .*)$"), "h"),
    (re.compile(r"^(   ok)(?= )"), "g"),
    (re.compile(r"^(   answered by .*)$"), "d"),
    (re.compile(r"(#+)\s*$"), "c"),
)
"""Which part of a line has which class."""

HIDDEN, VISIBLE = "{ visibility: hidden }", "{ visibility: visible }"
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" role="img"
  width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>mesh-pilot demo, as recorded</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre }}
.h {{ fill: #f0f6fc; font-weight: 600 }} .g {{ fill: #7ee787 }} .c {{ fill: #79c0ff }} .d {{ fill: #8b949e }}
.l, #all {{ animation: {seconds}s step-end infinite }}
#all {{ transform: translateY(-{end}px); animation-name: all }}
@media (prefers-reduced-motion: reduce) {{ .l, #all {{ animation: none }} }}
@keyframes all {{ {scroll} }}
{frames}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg y="{margin}" width="{width}" height="{inner}"><g id="all">
"""


@attrs.frozen
class Line:
    """A line of output, and the seconds from the start at which it appears."""

    at: float
    text: str


def record() -> list[Line]:
    """What the demo prints. Raises CalledProcessError if it fails."""
    environment = os.environ | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    lines = [Line(0.0, f"$ {COMMAND}")]
    at, before = 0.0, time.monotonic()
    with subprocess.Popen(COMMAND.split(), stdout=subprocess.PIPE, text=True, env=environment) as demo:
        for line in demo.stdout or ():
            now = time.monotonic()
            at, before = at + min(now - before, LONGEST), now
            wrapped = textwrap.wrap(line.rstrip(), COLUMNS, subsequent_indent=" " * 6, drop_whitespace=False) or [""]
            lines += [Line(at, part.rstrip()) for part in wrapped]
    if demo.returncode:
        raise subprocess.CalledProcessError(demo.returncode, COMMAND)
    return lines


def picture(lines: list[Line]) -> str:
    """The SVG of a recording."""
    seconds = round(lines[-1].at + PAUSE, 1)

    def share(line: Line) -> float:
        return round(100 * line.at / seconds, 2)

    moved = {share(line): ROW * max(0, number - ROWS + 1) for number, line in enumerate(lines)}
    width, inner = round(2 * MARGIN + COLUMNS * CELL), ROW * ROWS
    head = HEAD.format(
        width=width,
        height=2 * MARGIN + inner,
        inner=inner,
        margin=MARGIN,
        seconds=seconds,
        end=max(moved.values()),
        scroll=" ".join(f"{at}% {{ transform: translateY(-{by}px) }}" for at, by in moved.items()),
        frames="\n".join(
            f".s{number} {{ animation-name: s{number} }} @keyframes s{number} {{ 0% {HIDDEN} {at}% {VISIBLE} }}"
            for number, at in enumerate(moved)
        ),
    )
    classes = {at: f"l s{number}" for number, at in enumerate(moved)}
    body = [
        f'<text xml:space="preserve" x="{MARGIN}" y="{ROW * (number + 0.75):g}" '
        f'class="{classes[share(line)]}">{styled(line.text)}</text>\n'
        for number, line in enumerate(lines)
        if line.text
    ]
    return head + "".join(body) + "</g></svg>\n</svg>\n"


def styled(text: str) -> str:
    """A line as SVG, its parts in their classes."""
    for pattern, name in STYLES:
        if match := pattern.search(text):
            parts = text[: match.start(1)], match[1], text[match.end(1) :]
            before, part, after = (escape(part, quote=False) for part in parts)
            return f'{before}<tspan class="{name}">{part}</tspan>{after}'
    return escape(text, quote=False)


def shown(svg: str) -> list[str]:
    """The lines that a picture shows."""
    return [unescape(re.sub(r"<[^>]+>", "", line)) for line in re.findall(r"<text [^>]*>(.*?)</text>", svg)]


def main() -> int:
    TO.write_text(picture(record()), encoding="utf-8")
    print(TO)
    return 0


if __name__ == "__main__":
    sys.exit(main())
