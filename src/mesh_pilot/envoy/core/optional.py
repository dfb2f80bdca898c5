"""Optional parts of a resource: an internal error in one costs that part, not the resource.

Only for telemetry (access logs, tracing). A resource without a part that secures traffic would be worse than its last
good version: errors there fail the whole resource.
"""

from __future__ import annotations

from typing import TypeVar

from mesh_pilot.engine import CycleError, Query
from mesh_pilot.world.view import View

T = TypeVar("T")


def optional(view: View, part: Query[T], without: T) -> T:
    """The value of a part; ``without`` if it raises. The memo table knows the error, and the catalog reports it."""
    try:
        return part.get(view)
    except CycleError:
        raise  # The memo table has to see it: results computed inside a cycle must not be kept.
    except Exception:
        return without
