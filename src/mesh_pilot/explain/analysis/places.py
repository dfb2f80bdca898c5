"""The lines of fields, for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Origin

_FILES = ("MeshConfig", "MeshNetworks")
"""Settings that are their own file."""


class Places:
    """The places of messages. Each file is read once, and each object's lines are looked for once.

    The file of an object in force is read again, because objects do not keep the lines of their fields. If it has
    changed so that another object stands there, or cannot be read, the place of the object is the answer.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        """``texts``: files that were read, by location."""
        self._texts = dict(texts or {})
        self._documents: dict[str, dict[int, Document]] = {}

    def of(self, message: AnalysisMessage) -> Origin:
        """The file and line of a message's field, or of its object."""
        origin = message.config.origin
        if message.line:
            return attrs.evolve(origin, line=message.line)
        is_file = message.config.key.kind in _FILES
        if not message.path or not (origin.line or is_file):
            return origin
        documents = self._at(origin.location)
        document = next(iter(documents.values()), None) if is_file else documents.get(origin.line)
        if document is None or document.data.get("kind") != (
            None if is_file else written_kind(message.config.key.kind)
        ):
            return origin
        return attrs.evolve(origin, line=document.line_of(message.path))

    def _at(self, location: str) -> dict[int, Document]:
        if location not in self._documents:
            text = self._texts.get(location) or _text(location)
            if location.lower().endswith(".json"):
                text = text.replace("\t", " ")
            found = load(text, Origin("", location))
            self._documents[location] = {d.line: d for d in found if isinstance(d, Document)}
        return self._documents[location]


def _text(location: str) -> str:
    try:
        return Path(location).read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return ""
