"""Values of the API as a client sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mesh_pilot.model.json import as_json


def rows(values: Iterable[object]) -> list[Any]:
    """Values as JSON."""
    return [as_json(each) for each in values]
