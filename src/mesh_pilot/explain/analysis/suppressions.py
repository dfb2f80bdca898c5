"""Messages that users do not want to hear: by flag, and by annotation of the object."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import attrs

from mesh_pilot.explain.analysis.codes import CODES
from mesh_pilot.explain.analysis.findings import AnalysisMessage

ANNOTATION = "galley.istio.io/analyze-suppress"
"""The codes, with commas between them, that are not told of an object; ``*`` for all."""


class SuppressionError(ValueError):
    """A suppression that cannot be: the reason, for people."""


@attrs.frozen
class Suppression:
    """A pattern of codes and one of objects."""

    code: str
    object: str
    """``KIND/NAMESPACE/NAME``, or ``KIND NAME.NAMESPACE`` as istioctl has it."""

    @classmethod
    def parse(cls, text: str) -> Suppression:
        """``CODE=KIND/NAMESPACE/NAME``, with ``*`` and ``?`` anywhere; without ``=`` it is for all objects.

        Raises SuppressionError.
        """
        code, _, name = (part.strip() for part in text.partition("="))
        if not any(fnmatchcase(known, code.upper()) for known in CODES):
            raise SuppressionError(f"there is no message {code!r}; see {next(iter(CODES.values())).PAGE}")
        kind, space, rest = name.partition(" ")
        if space and "/" not in name:
            plain, dot, namespace = rest.strip().partition(".")
            name = f"{kind}/{namespace}/{plain}" if dot else f"{kind}/{plain}"
        return cls(code.upper(), name or "*")

    def covers(self, message: AnalysisMessage) -> bool:
        return fnmatchcase(message.type.code, self.code) and fnmatchcase(message.object, self.object)


@attrs.frozen
class Suppressions:
    """All of them."""

    given: tuple[Suppression, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Suppressions:
        """Raises SuppressionError."""
        return cls(tuple(map(Suppression.parse, texts)))

    def cover(self, message: AnalysisMessage) -> bool:
        """True if a message is not to be told."""
        annotated = message.config.annotations.get(ANNOTATION, "")
        codes = {code.strip().upper() for code in annotated.split(",")} if annotated else ()
        if "*" in codes or message.type.code in codes:
            return True
        return any(suppression.covers(message) for suppression in self.given)
