"""How flags are read that several commands have. Used as ``type=`` of a click option; the name stands in the help.

What reads a value is imported when there is one to read: ``--help`` and completion load none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class Reader(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of click only
    """A type of flags from a function that reads their text; named after it in the help.

    For completion click converts defaults too, though nobody looks at them: they stay text.
    """

    def __init__(self, read: Callable[[str], object]) -> None:
        self.name = read.__name__
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if ctx is not None and ctx.resilient_parsing else self._read(value)


@Reader
def duration(text: str) -> float:
    """A length of time such as ``10s``, ``250ms`` or ``1m30s``, in seconds."""
    from mesh_pilot.config.scalars import read_duration

    try:
        seconds = read_duration(text).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < 0:
        raise click.BadParameter(f"{text!r} is negative")
    return seconds


@Reader
def address(text: str) -> str:
    """``host:port``, ``[::1]:port``, ``:port`` (every interface) or ``unix:///path``, checked and as it was written."""
    from mesh_pilot.rpc.errors import AddressError
    from mesh_pilot.rpc.net import parse_address

    scheme, separator, rest = text.partition("://")
    if separator and scheme != "unix":
        raise click.BadParameter(f"{text!r} is a URL; write the address alone: {rest.rstrip('/')}")
    try:
        parse_address(text)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None
    return text


@Reader
def label(text: str) -> tuple[str, str]:
    """``key=value`` as a pair."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not key=value")
    return key, value
