"""Messages: one problem each, with a code that has a section in docs/analysis.md, the object, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import attrs

from mesh_pilot.model.config import Config, Origin


class Level(StrEnum):
    """The weight of a message, as in Istio. The heaviest has the least ``rank``."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        return list(Level).index(self)


@attrs.frozen
class MessageType:
    """One code: Istio's (``IST0101``) for Istio's messages, ``MP0001`` and up for ours. See docs/analysis.md."""

    PAGE: ClassVar[str] = "docs/analysis.md"

    code: str
    name: str
    """Istio's name of the message, such as ``ReferencedResourceNotFound``."""
    level: Level
    template: str
    """The text with ``{}`` for each argument."""
    description: str
    """The problem in general, in a sentence."""
    fix: str
    """The way to fix it in general, in a sentence."""

    @property
    def doc(self) -> str:
        """The section about it."""
        return f"{self.PAGE}#{self.code.lower()}"


@attrs.frozen
class AnalysisMessage:
    """A problem of an object."""

    type: MessageType
    config: Config
    """The object that is at fault, or that is to be fixed. Of an object of Kubernetes the ``spec`` is plain data."""
    path: str
    """Field, such as ``spec.http[0].route[0].destination.host``; empty for the object as a whole."""
    arguments: Sequence[object]
    own_mend: str = ""
    """The way to fix this one, where more is known than for its type in general."""
    line: int = 0
    """1-based line of the field where the reader of the object noted it; 0: see ``places``."""

    @property
    def text(self) -> str:
        return self.type.template.format(*self.arguments)

    @property
    def fix(self) -> str:
        """The way to fix it, in a sentence."""
        return self.own_mend or self.type.fix

    @property
    def object(self) -> str:
        """The name of the object, ``VirtualService/shop/reviews``; without a namespace for kinds that have none."""
        return "/".join(part for part in self.config.key if part)

    @property
    def origin(self) -> Origin:
        """The location of the object, or of the field if its line is known."""
        return attrs.evolve(self.config.origin, line=self.line) if self.line else self.config.origin
