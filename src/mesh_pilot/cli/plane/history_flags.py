"""The flags of ``mesh-pilot history`` that say where the revisions are read: a state folder, or a control plane."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mesh_pilot.cli.plane.client import PlaneClient, chosen_plane, connection_options, plane_flags

F = TypeVar("F", bound=Callable[..., Any])


def may_ask_a_plane(command: F) -> F:
    """The flags that say which control plane; the command gets it as ``plane``, or None: the state folder is read.

    The folder is read if ``--state-dir`` names one, or if neither a flag, a variable nor a current context says which
    control plane is meant.
    """

    @wraps(command)
    def wrapped(
        *args: Any, pilot: str | None, context: str | None, plane: PlaneClient | None = None, **options: Any
    ) -> Any:
        more = connection_options(options)
        is_named = pilot is not None or context is not None
        if is_named and _is_given("state_dir"):
            raise click.UsageError("--pilot and --context exclude --state-dir")
        if plane is None and (is_named or options["state_dir"] is None):
            found = chosen_plane(pilot, context, more, default="")
            plane = found if found.address or found.problem else None
        return command(*args, plane=plane, **options)

    return plane_flags()(wrapped)  # type: ignore[return-value]  # click's decorators keep the function's type


def _is_given(name: str) -> bool:
    """True for a flag on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
