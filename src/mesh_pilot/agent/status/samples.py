"""Lines of Prometheus' text format as samples, piece by piece. They were judged before, by ``exposition``.

Prometheus' own parser wants a page in one piece, and takes three times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from mesh_pilot.net.otlp.data_points import SeriesSample

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+(-?\d+))?[ \t]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_PLAIN = {"n": "\n"}


@attrs.frozen
class Family:
    """The beginning of another family."""

    name: str
    kind: str
    help: str = ""


class Lines:
    """Reads lines. State: the HELP whose TYPE has not come, and the family."""

    def __init__(self) -> None:
        self._help = ("", "")

    def read(self, data: bytes) -> Iterator[Family | SeriesSample]:
        """The families and samples of whole lines; lines of neither are passed over."""
        for line in data.decode("utf-8", "replace").split("\n"):
            if line.startswith("#"):
                yield from self._comment(line)
            elif (found := _LINE.fullmatch(line)) is not None:
                name, labels, value, at = found.groups()
                yield SeriesSample(name, _labels(labels or ""), float(value), int(at) / 1000 if at else None)

    def _comment(self, line: str) -> Iterator[Family]:
        match line.split(maxsplit=3):
            case ["#", "HELP", name, text]:
                self._help = name, _unescaped(text)
            case ["#", "TYPE", name, kind]:
                yield Family(name, kind.strip(), self._help[1] if self._help[0] == name else "")


def _labels(text: str) -> dict[str, str]:
    found = _LABEL.findall(text)
    return {name: _unescaped(value) if "\\" in value else value for name, value in found}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _PLAIN.get(found[1], found[1]), text)
