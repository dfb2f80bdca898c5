"""Descriptions: sections of lines for people, each line with the object that it is about, and facts for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.picture import MeshPicture
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.ops.explain.fields import Decider


@attrs.frozen
class DescribedLine:
    """A line about something, and the object that says so."""

    text: str
    decider: Decider | None = None

    def as_json(self) -> dict[str, Any]:
        about = self.decider.as_json() if self.decider is not None else {}
        return {"text": self.text, **{name: about.get(name, "") for name in ("object", "field", "place")}}


@attrs.define
class Description:
    """A description of a service, a proxy or an object. Made on Trio's thread; ``as_json`` runs in a thread."""

    kind: str
    name: str
    summary: str
    facts: dict[str, Any] = attrs.Factory(dict)
    sections: list[tuple[str, list[DescribedLine]]] = attrs.Factory(list)
    warnings: list[DescribedLine] = attrs.Factory(list)
    concerned: set[ConfigKey] = attrs.Factory(set)
    """The objects whose problems are listed, too."""

    def section(self, title: str, lines: Sequence[DescribedLine]) -> None:
        """Add a section; none without lines. Its objects are concerned."""
        if lines:
            self.sections.append((title, list(lines)))
            self.concerned.update(line.decider.key for line in lines if line.decider and line.decider.key)

    def as_json(self, picture: MeshPicture) -> dict[str, Any]:
        """With the lines of fields, and with what analysis says about the objects concerned."""
        return {
            "kind": self.kind,
            "name": self.name,
            "summary": self.summary,
            "facts": self.facts,
            "sections": [{"title": t, "lines": [line.as_json() for line in lines]} for t, lines in self.sections],
            "warnings": [*({"code": "", "mend": "", **w.as_json()} for w in self.warnings), *self._analysed(picture)],
        }

    def _analysed(self, picture: MeshPicture) -> Iterator[dict[str, Any]]:
        for message in analyze_picture(picture):
            if message.config.key in self.concerned:
                about = Decider(message.object, message.path, message.origin, message.config.key).as_json()
                yield {
                    "code": message.type.code,
                    "text": message.text,
                    "mend": message.mend,
                    **{name: about[name] for name in ("object", "field", "place")},
                }
