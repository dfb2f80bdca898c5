"""Kinds of Istio 1.1 to 1.4 that are kept and listed, and that nothing carries out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mesh_pilot.model.config import Problem, Severity

if TYPE_CHECKING:
    import betterproto2

    from mesh_pilot.istio.rules.context import Context

REASON = "this kind is kept and listed, but nothing in a current Envoy carries it out"


def validate(spec: betterproto2.Message, context: Context) -> Iterator[Problem]:
    """One warning: the object has no effect."""
    yield Problem("", REASON, Severity.WARNING)
