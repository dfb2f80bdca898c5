"""Printing of listings: a table for people, JSON and YAML for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mesh_pilot.cli.lib.terminal import coloured, plain, print_value, table

if TYPE_CHECKING:
    from mesh_pilot.explain.inspection.dump import ConfigDump
    from mesh_pilot.explain.inspection.listings.listing import Listing

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("short", "json", "yaml")


def output_option(default: str = "short") -> Callable[[F], F]:
    return click.option(
        "--output", "-o", type=click.Choice(FORMATS), default=default, show_default=True, help="How to print it."
    )


def print_listing(dump: ConfigDump, listing: Listing, output: str, nothing: str) -> int:
    """Print a listing; the command's exit code, 1 if there is nothing."""
    if output != "short":
        print_value(list(listing.messages), output)
        return 0
    if not listing.rows:
        click.echo(nothing)
        return 1
    for line in table([[plain(cell) for cell in row] for row in listing.table(dump)]):
        shown = line
        for word in ("UNHEALTHY", "FAILED", "refused"):
            shown = coloured(shown, word, fg="red")
        click.echo(shown)
    for key, why in dump.kept_back.items():
        click.echo(plain(f"note: {key} is not in force at this proxy as it is written: {why}"), err=True)
    return 0
