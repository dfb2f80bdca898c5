"""Descriptions: sections of lines for people, each line with the object that it is about, and facts for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.input import AnalysisInput
from mesh_pilot.explain.analysis.suppressions import Suppressions
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.json import as_json
from mesh_pilot.ops.explain.fields import Decider, decider
from mesh_pilot.ops.values.truth import ObjectTruth
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.world import View

_ANNOTATED = Suppressions(())
"""Suppressions by the annotation of an object alone."""


@attrs.frozen
class PlacedLine:
    """A line, and the field that says so."""

    text: str
    object: str = ""
    field: str = ""
    place: str = ""


@attrs.frozen
class DescribedSection:
    """Lines about one subject."""

    title: str
    lines: Sequence[PlacedLine]


@attrs.frozen
class DescriptionShown:
    """A service, a proxy or an object in words."""

    kind: str
    name: str
    summary: str
    facts: Mapping[str, Any]
    """Facts for programs."""
    sections: Sequence[DescribedSection]
    warnings: Sequence[Mapping[str, str]]
    """Problems: ``text`` and its place, and ``code`` for what analysis finds."""


@attrs.frozen
class DescribedLine:
    """A line about something, and the object that says so."""

    text: str
    decider: Decider | None = None

    def placed(self) -> PlacedLine:
        """With the place of the field; reads its file."""
        if self.decider is None:
            return PlacedLine(self.text)
        about = self.decider.placed()
        return PlacedLine(self.text, about.object, about.field, about.place)


@attrs.define
class Description:
    """A description of a service, a proxy or an object. Made on Trio's thread; ``shown`` runs in a thread."""

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

    def kept_back(self, view: View, found: Iterable[tuple[tuple[str, ...], ObjectTruth]]) -> None:
        """Say first which objects are not in force as they are written."""
        lines, told = [], {}
        for key, truth in found:
            if not truth.is_in_force:
                told[name_of(key)] = as_json(truth)
                about = decider(view, FieldOfObject(ConfigKey(*key[1:]))) if key[0] == "config" else None
                text = f"{'' if about else f'{name_of(key)} '}{truth.text}"
                lines += [DescribedLine(text, about), *(DescribedLine(f"  {each}") for each in (truth.fix,) if each)]
        if lines:
            self.sections.insert(0, ("Not in force as written", lines))
            self.facts["keptBack"] = told

    def shown(self, picture: AnalysisInput) -> DescriptionShown:
        """With the lines of fields, and with what analysis says about the objects concerned."""
        sections = [DescribedSection(title, [line.placed() for line in lines]) for title, lines in self.sections]
        own = ({"code": "", "fix": "", **attrs.asdict(warning.placed())} for warning in self.warnings)
        warnings = [*own, *self._analysed(picture)]
        return DescriptionShown(self.kind, self.name, self.summary, self.facts, sections, warnings)

    def _analysed(self, picture: AnalysisInput) -> Iterator[dict[str, str]]:
        for message in analyze_picture(picture):
            if message.config.key in self.concerned and not _ANNOTATED.cover(message):
                about = Decider(message.object, message.path, message.origin, message.config.key).placed()
                yield {
                    "code": message.type.code,
                    "text": message.text,
                    "fix": message.fix,
                    "object": about.object,
                    "field": about.field,
                    "place": about.place,
                }
