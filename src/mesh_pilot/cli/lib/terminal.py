"""Output of commands: colours and widths for a terminal, plain text for a pipe, JSON and YAML for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

import click

WATCH_SECONDS = 2.0
"""The interval of commands that print their answer again."""

CLEAR = "\x1b[H\x1b[2J"


def watched(show: Callable[[], object]) -> NoReturn:
    """Print an answer again and again, in the same place of a terminal, until interrupted; an error is a line of it."""
    while True:
        if sys.stdout.isatty():
            click.echo(CLEAR, nl=False)
        try:
            show()
        except click.ClickException as error:
            click.echo(f"mesh-pilot: {error.format_message()}", err=True)
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def has_colour(stream: TextIO) -> bool:
    """True if colours are written there: only on a terminal, and never if NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def coloured(line: str, part: str, *, fg: str) -> str:
    """The line for standard output, with every occurrence of ``part`` in a colour."""
    if not has_colour(sys.stdout):
        return line
    return line.replace(part, click.style(part, fg=fg, bold=True))


def width() -> int | None:
    """Columns of the terminal on standard output; None where there is none, and lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: cells padded to the width of their columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain(text: str) -> str:
    """The text without what would steer a terminal or break a table: such characters are shown as escapes.

    Names come from proxies, registries and files that others write.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_value(value: Any, output: str) -> None:
    """Print a value as JSON or YAML."""
    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120), nl=False)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
