"""What there is to say about a field for being used at all, however its object was written."""

from __future__ import annotations

from collections.abc import Iterator

import betterproto2

from mesh_pilot.config.deprecated import DEPRECATED
from mesh_pilot.config.shapes import FieldShape
from mesh_pilot.config.without_effect import WITHOUT_EFFECT
from mesh_pilot.model.config import Problem, Severity

NO_EFFECT = "has no effect"
"""How the reason begins where something that was written is not carried out."""


def told(message: type[betterproto2.Message], field: FieldShape, path: str) -> Iterator[Problem]:
    """Warnings about a field of a message that stands at a path."""
    if (idle := WITHOUT_EFFECT.get(message)) and field.proto_name in idle:
        yield Problem(path, f"{NO_EFFECT}: {idle[field.proto_name]}", Severity.WARNING)
    elif (deprecated := DEPRECATED.get(message)) and field.proto_name in deprecated:
        yield Problem(path, f"is deprecated: {deprecated[field.proto_name]}", Severity.WARNING)
