"""The flags of ``mesh-pilot admin`` that say which control plane gets an order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click
from click.core import ParameterSource

from mesh_pilot.cli.lib.options import PLANE, SettingOption, variable_of
from mesh_pilot.cli.lib.state_folder import default_folder
from mesh_pilot.cli.plane.client import CONNECTION, PlaneClient, chosen_plane, connection_options, plane_flags

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)


def gives_orders(command: F) -> F:
    """The flags that say which control plane; the command gets it as ``plane``. By default that on this machine."""

    @wraps(command)
    def wrapped(
        *args: Any,
        pilot: str | None,
        context: str | None,
        state_dir: Path | None,
        admin_socket: Path | None,
        **options: Any,
    ) -> Any:
        more = connection_options(options)
        is_named = pilot is not None or context is not None
        if is_named and (admin_socket is not None or _is_given("state_dir")):
            raise click.UsageError("--pilot and --context exclude --admin-socket and --state-dir")
        plane = _ordered(pilot, context, more, state_dir, admin_socket)
        return command(*args, plane=attrs.evolve(plane, timeout_seconds=60), **options)

    found: Any = plane_flags()(wrapped)
    for name, text in (
        ("--admin-socket", "The control plane's --admin-socket.  [default: admin.sock in the state folder]"),
        ("--state-dir", "The control plane's --state-dir.  [default: the system's, such as /var/lib/mesh-pilot]"),
    ):
        found = click.option(name, cls=SettingOption, section=PLANE, type=_PATH, envvar=variable_of(name), help=text)(
            found
        )
    return cast(F, found)


def completed_plane(params: Mapping[str, Any]) -> PlaneClient:
    """The control plane that is meant by the flags of a command line so far, whose words may be no values yet."""
    given = dict(params)
    pilot, context = (_first(given.get(name)) for name in ("pilot", "context"))
    more = connection_options({name: given.get(name) for name in CONNECTION})
    if "admin_socket" in given:
        return _ordered(pilot, context, more, given["state_dir"], given["admin_socket"])
    return chosen_plane(pilot, context, more)


def _first(value: Any) -> str | None:
    """A flag's value, or the first where it can be repeated."""
    return next(iter(value), None) if isinstance(value, tuple) else value


def _ordered(
    pilot: str | None,
    context: str | None,
    more: Mapping[str, Any],
    state_dir: Path | None,
    admin_socket: Path | None,
) -> PlaneClient:
    """The control plane that gets an order."""
    socket = f"unix://{_socket(state_dir, admin_socket)}"
    if pilot is None and context is None and (admin_socket is not None or state_dir is not None):
        return PlaneClient(socket)
    return chosen_plane(pilot, context, more, default=socket)


def _is_given(name: str) -> bool:
    """True for a flag on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _socket(state_dir: Path | None, admin_socket: Path | None) -> Path:
    if admin_socket is not None:
        return admin_socket
    from mesh_pilot.safety.state.settings import ADMIN_SOCKET

    return (state_dir or default_folder(os.environ)) / ADMIN_SOCKET
