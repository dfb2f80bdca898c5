"""``mesh-pilot version`` and ``mesh-pilot --version``."""

from __future__ import annotations

import platform

import click

from mesh_pilot import __version__


def version_text() -> str:
    """The versions of mesh-pilot and Python."""
    return f"mesh-pilot {__version__} (Python {platform.python_version()}, {platform.system()})"


@click.command("version")
def command() -> None:
    """Print the versions of mesh-pilot and Python."""
    click.echo(version_text())
