"""Findings: one problem each, with a code that has a page, the place, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.world import World


class Level(StrEnum):
    """The weight of a finding, as in Istio."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@attrs.frozen
class MessageType:
    """One code: Istio's (``IST0101``) for Istio's messages, ``MP0001`` and up for ours. See docs/analysis.md."""

    code: str
    name: str
    """Istio's name of the message, such as ``ReferencedResourceNotFound``."""
    level: Level
    template: str
    """The text with ``{}`` for each argument."""


@attrs.frozen
class AnalysisMessage:
    """A problem of an object."""

    type: MessageType
    config: Config
    """The object that is at fault, or that is to be mended."""
    path: str
    """Field, such as ``spec.http[0].route[0].destination.host``; empty for the object as a whole."""
    arguments: Sequence[object]
    mend: str = ""
    """The way to mend it, in a sentence."""

    @property
    def text(self) -> str:
        return self.type.template.format(*self.arguments)


Analyzer = Callable[[World], Iterator[AnalysisMessage]]
