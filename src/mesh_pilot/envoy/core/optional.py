"""Optional parts of a resource: an internal error in one costs that part, not the resource.

Only for telemetry (access logs, tracing). A resource without a part that secures traffic would be worse than its last
good version: errors there fail the whole resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from mesh_pilot.incremental import CycleError

log = structlog.get_logger(scope="envoy")


@contextmanager
def optional_part(name: str, **context: object) -> Iterator[None]:
    """Run the body; an exception in it is logged with ``context`` and suppressed."""
    try:
        yield
    except CycleError:
        raise  # The memo table has to see it: results computed inside a cycle must not be kept.
    except Exception as error:
        log.error("translator failed; resource generated without this part", part=name, **context, exc_info=error)
