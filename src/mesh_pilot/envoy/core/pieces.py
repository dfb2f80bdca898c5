"""Pieces that a resource can do without: an internal error in one costs that piece, and the resource stands.

Only for what observes traffic (access logs, tracing). A resource without a piece that guards traffic is worse than the
last good resource: errors there go up to the resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from mesh_pilot.incremental import CycleError

log = structlog.get_logger(scope="envoy")


@contextmanager
def optional_piece(name: str, **context: object) -> Iterator[None]:
    """Run the body; an exception ends it, is logged with ``context``, and goes no further."""
    try:
        yield
    except CycleError:
        raise  # The memo table has to see it: what is computed inside a cycle must not be remembered.
    except Exception as error:
        log.error("translator failed; the resource goes without this piece", piece=name, **context, exc_info=error)
