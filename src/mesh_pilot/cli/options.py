"""How flags are read that several commands have. Used as ``type=`` of a click option; the name stands in the help."""

from __future__ import annotations

import click

from mesh_pilot.config.scalars import read_duration
from mesh_pilot.rpc.errors import AddressError
from mesh_pilot.rpc.net import parse_address


def duration(text: str) -> float:
    """A length of time such as ``10s``, ``250ms`` or ``1m30s``, in seconds."""
    try:
        seconds = read_duration(text).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < 0:
        raise click.BadParameter(f"{text!r} is negative")
    return seconds


def address(text: str) -> str:
    """``host:port``, ``[::1]:port``, ``:port`` (every interface) or ``unix:///path``, checked and as it was written."""
    try:
        parse_address(text)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None
    return text


def label(text: str) -> tuple[str, str]:
    """``key=value`` as a pair."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not key=value")
    return key, value
