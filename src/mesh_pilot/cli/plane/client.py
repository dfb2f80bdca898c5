"""The flags of the commands that ask a control plane, and which one they mean.

The plane is the one of, in this order: ``--pilot``, ``--context``, ``MESH_PILOT_PILOT``, ``MESH_PILOT_CONTEXT``, the
current context of the contexts file, and 127.0.0.1:8080.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from mesh_pilot.cli.lib.options import PLANE, SettingOption
from mesh_pilot.cli.plane.contexts import Contexts, completed_contexts
from mesh_pilot.cli.plane.requests import PlaneClient, plane_address

__all__ = ["PlaneClient", "asks_a_plane", "asks_planes", "chosen_plane", "connection_options", "plane_flags"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT = "127.0.0.1:8080"

_PATH = click.Path(path_type=Path)


def asks_a_plane(command: F) -> F:
    """The flags that say which control plane is asked; the command gets them as ``plane``, a PlaneClient."""

    @plane_flags()
    @wraps(command)
    def wrapped(*args: Any, pilot: str | None, context: str | None, **options: Any) -> Any:
        return command(*args, plane=chosen_plane(pilot, context, connection_options(options)), **options)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type


def asks_planes(command: F) -> F:
    """The same for several control planes: ``--pilot`` and ``--context`` (or a pattern of names) can be repeated.

    The command gets ``planes``, a list that is never empty.
    """

    @plane_flags(multiple=True)
    @wraps(command)
    def wrapped(*args: Any, pilot: tuple[str, ...], context: tuple[str, ...], **options: Any) -> Any:
        more = connection_options(options)
        planes = [chosen_plane(each, None, more) for each in pilot]
        planes += [plane for pattern in context for plane in _matching(pattern, more)]
        return command(*args, planes=planes or [chosen_plane(None, None, more)], **options)

    return wrapped  # type: ignore[return-value]  # click's decorators keep the function's type


def plane_flags(*, multiple: bool = False) -> Callable[[F], F]:
    """The flags alone."""
    repeatable = "  Repeatable." if multiple else ""
    flags: list[tuple[str, dict[str, Any]]] = [
        (
            "--pilot",
            {
                "type": plane_address,
                "metavar": "ADDRESS",
                "multiple": multiple,
                "help": "The control plane: its --http-addr, https://HOST:PORT, or unix:///PATH of its admin socket."
                f"{repeatable}  [default: {DEFAULT}]",
            },
        ),
        (
            "--context",
            {
                "multiple": multiple,
                "shell_complete": completed_contexts,
                "help": f"The control plane of this name (mesh-pilot context).{repeatable}  [default: the current one]",
            },
        ),
        ("--token-file", {"type": _PATH, "envvar": "MESH_PILOT_TOKEN_FILE", "help": "File with our token there."}),
        ("--pilot-ca", {"type": _PATH, "envvar": "MESH_PILOT_PILOT_CA", "help": "PEM file of the CA of https."}),
        ("--pilot-cert", {"type": _PATH, "envvar": "MESH_PILOT_PILOT_CERT", "help": "PEM file of our certificate."}),
        ("--pilot-key", {"type": _PATH, "envvar": "MESH_PILOT_PILOT_KEY", "help": "PEM file of its key."}),
    ]

    def decorate(command: F) -> F:
        for name, attributes in reversed(flags):
            command = click.option(name, cls=SettingOption, section=PLANE, **attributes)(command)
        return command

    return decorate


CONNECTION = {"token_file": "token_file", "pilot_ca": "ca", "pilot_cert": "certificate", "pilot_key": "key"}
"""The flags that a context has, too, and their names there."""


def connection_options(options: dict[str, Any]) -> Mapping[str, Any]:
    """The flags of the connection that were given, taken out of the options."""
    return {CONNECTION[name]: value for name in CONNECTION if (value := options.pop(name)) is not None}


def chosen_plane(
    pilot: str | None, context: str | None, more: Mapping[str, Any], default: str = DEFAULT
) -> PlaneClient:
    """The control plane that is meant; ``more``: see `connection_options`."""
    token = os.environ.get("MESH_PILOT_TOKEN", "")
    pilot = pilot or (os.environ.get("MESH_PILOT_PILOT", "") if not context else "")
    try:
        if pilot:
            return attrs.evolve(PlaneClient(plane_address.convert(pilot, None, None), token=token), **more)
        name = context or os.environ.get("MESH_PILOT_CONTEXT", "")
        contexts = Contexts.read()
        if not (name or contexts.current):
            return attrs.evolve(PlaneClient(default, token=token), **more)
        return attrs.evolve(contexts.client(name or contexts.current, token), **more)
    except click.ClickException as error:
        return PlaneClient(pilot or default, problem=error.format_message())


def _matching(pattern: str, more: Mapping[str, Any]) -> list[PlaneClient]:
    names = [name for name in Contexts.read().names if fnmatchcase(name, pattern)]
    return [chosen_plane(None, name, more) for name in names or [pattern]]
